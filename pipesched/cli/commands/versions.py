"""``pipesched versions``: which weights every op reads, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.schedule_options import Json, ScheduleOptions, grouped
from pipesched.cli.output.output_files import PICTURE, check_outputs
from pipesched.cli.output.terminal import percent, print_table, progress_bar

if TYPE_CHECKING:
    from pipesched.schedules import Schedule
    from pipesched.schedules.weights import Reading, Staleness, Use


@grouped
def versions(
    schedule: ScheduleOptions,
    weights: Annotated[
        str | None, typer.Option(help="Sizes of the stages' weights, for the share that is stale: 10,20,30.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the staleness: .png, .svg or .pdf.")] = None,
    first: Annotated[
        int | None, typer.Option(help="Micro-batches, from the first, in the table (12) and the picture (32).", min=1)
    ] = None,
    json: Json = False,
) -> None:
    """Show versions, look-ahead, staleness, live copies and micro-batches in flight, of a run of any length."""
    from pipesched.schedules.check import require_runnable
    from pipesched.schedules.weights import staleness

    check_outputs((plot, PICTURE))
    loaded = schedule.load_lazily()
    if loaded.is_held:
        require_runnable(loaded)
    sizes = _sizes(weights, loaded.num_stages)
    with progress_bar("reading the lists") as tick:
        found = staleness(loaded, tick)
    share = found.stale_share(sizes)
    if plot is not None:
        from pipesched.simulator.views import draw_staleness

        draw_staleness(loaded, plot, first or 32)
    if json:
        _print_json(loaded, found, share)
    else:
        _print_reads(loaded, first or 12)
        _print_stages(loaded, found, share)


def _sizes(text: str | None, num_stages: int) -> Sequence[float]:
    from pipesched.cli.options.pairs import number

    if text is None:
        return (1.0,) * num_stages
    sizes = [number(size, "--weights") for size in text.split(",")]
    if len(sizes) != num_stages or sum(sizes) == 0:
        raise InputError(
            f"--weights: got {text}, expected {num_stages} sizes, one per stage, not all 0; "
            f"try {','.join('1' * num_stages)}"
        )
    return sizes


def _print_json(schedule: Schedule, found: Staleness, share: float) -> None:
    """Print everything, the ops one by one: they may be too many to hold."""
    import json
    from dataclasses import asdict

    from pipesched.schedules.weights import rank_uses

    head = {
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
        "in_flight": found.in_flight,
        "stale_share": share,
        "stages": [asdict(stage) for stage in found.stages],
    }
    print(json.dumps(head, indent=2, allow_nan=False).removesuffix("\n}") + ',\n  "ops": [')
    comma = ""
    for rank in range(schedule.num_ranks):
        for use in rank_uses(schedule, rank):
            print(f"{comma}    {json.dumps(_data(rank, use))}", end="")
            comma = ",\n"
    print("\n  ]\n}")


def _data(rank: int, use: Use) -> dict[str, Any]:
    from pipesched.schedules.weights import looks_ahead

    return {
        "rank": rank,
        "stage": use.op.stage,
        "microbatch": use.op.microbatch,
        "phase": use.op.phase,
        "version": use.op.version,
        "lookahead": use.op.lookahead,
        "current": use.current,
        "update": use.update,
        "staleness": use.staleness,
        "agreement": use.agreement,
        "held": use.held,
        "predicted_copy": looks_ahead(use.op),
        "in_flight": use.in_flight,
    }


def _print_reads(schedule: Schedule, first: int) -> None:
    """Print what F and the backward of the first micro-batches read."""
    from pipesched.schedules.weights import first_uses

    count = min(first, schedule.num_microbatches)
    forwards, backwards = first_uses(schedule, count)
    rows = []
    for stage in range(schedule.num_stages):
        cells = ((forwards[stage, i], backwards[stage, i]) for i in range(count))
        rows.append({"stage": str(stage)} | {str(i): f"{_weights(f)} {_weights(b)}" for i, (f, b) in enumerate(cells)})
    print_table(
        f"{schedule.name}: what F and B read",
        rows,
        "F first; 2+3 is version 2, predicted 3 steps ahead",
    )


def _weights(use: Use) -> str:
    return f"{use.op.version}+{use.op.lookahead}" if use.op.lookahead else str(use.op.version)


def _print_stages(schedule: Schedule, found: Staleness, share: float) -> None:
    rows = [
        {
            "stage": str(stage.stage),
            "ranks": ", ".join(map(str, stage.ranks)),
            **_cells("F", stage.forward),
            **_cells("B", stage.backward),
            "same": str(stage.same),
            "predicted": str(stage.predicted),
            "different": str(stage.different),
            "live versions": f"{stage.live_versions}{' + 1 predicted' if stage.predicts else ''}",
            "in flight": str(stage.in_flight),
        }
        for stage in found.stages
    ]
    print_table(
        f"{schedule.name}, {schedule.num_microbatches} micro-batches: the most of each",
        rows,
        "behind: steps between the version read and the one that the gradient changes; left: after prediction\n"
        "same, predicted, different: micro-batches whose F and B read the same weights, predictions of one version, "
        "or other versions\n"
        f"stale weights {percent(share)}; micro-batches in flight on each rank {', '.join(map(str, found.in_flight))}",
    )


def _cells(name: str, reading: Reading) -> dict[str, str]:
    left = "-" if reading.lag is None else str(reading.lag)
    return {f"{name} behind": str(reading.staleness), f"{name} ahead": str(reading.lookahead), f"{name} left": left}
