"""``pipesched versions``: the weights that every op reads, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pipesched
from pipesched.cli.options.option_groups import OUTPUT, Json, file_option, grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.values import number
from pipesched.cli.output.output_files import check_outputs
from pipesched.cli.terminal import print_result, print_table, progress_bar
from pipesched.simulator import views
from pipesched.simulator.views import FIGURE_SUFFIXES
from pipesched.workflows import Table

if TYPE_CHECKING:
    from pipesched.schedules import Schedule
    from pipesched.schedules.weights import Use
    from pipesched.workflows.checking import VersionReport


@grouped
def versions(
    *,
    schedule: ScheduleOptions,
    weights: Annotated[
        str | None, typer.Option(help="Sizes of the weights of each stage, for the share of stale weights: 10,20,30.")
    ] = None,
    plot: Annotated[Path | None, file_option("Draw the staleness", FIGURE_SUFFIXES)] = None,
    first: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=OUTPUT,
            help="Number of first micro-batches to show (default: 12 in the table, 32 in the picture).",
            min=1,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show versions, look-ahead, staleness, live copies and micro-batches in flight, of a run of any length."""
    check_outputs((plot, FIGURE_SUFFIXES))
    loaded = schedule.source(is_held=False).schedule
    sizes = None if weights is None else [number(size, "--weights") for size in weights.split(",")]
    with progress_bar("reading the lists") as tick:
        report = pipesched.versions(loaded, weights=sizes, progress=tick)
    if plot is not None:
        views.save_figure(lambda: views.staleness_figure(loaded, first or 32), plot)
    if json:
        _print_json(report)
    else:
        _print_reads(loaded, first or 12)
        print_result(report.table())


def _print_json(report: VersionReport) -> None:
    """Print everything, op by op, because the ops may be too many to hold."""
    import json
    from dataclasses import asdict

    from pipesched.schedules.weights import rank_uses

    schedule, staleness = report.schedule, report.staleness
    head = {
        "format": "pipesched.versions",
        "version": 1,
        "notes": [],
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
        "in_flight": staleness.in_flight,
        "stale_share": report.stale_share,
        "stages": [asdict(stage) for stage in staleness.stages],
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

    of_op = {name: getattr(use.op, name) for name in ("stage", "microbatch", "phase", "version", "lookahead")}
    of_use = {name: getattr(use, name) for name in ("current", "update", "staleness", "agreement", "held", "in_flight")}
    return {"rank": rank, **of_op, **of_use, "predicted_copy": looks_ahead(use.op)}


def _print_reads(schedule: Schedule, first: int) -> None:
    """Print the weights that F and the backward of the first micro-batches read."""
    from pipesched.schedules.weights import first_uses

    count = min(first, schedule.num_microbatches)
    forwards, backwards = first_uses(schedule, count)
    rows = []
    for stage in range(schedule.num_stages):
        cells = ((forwards[stage, i], backwards[stage, i]) for i in range(count))
        rows.append({"stage": str(stage)} | {str(i): f"{_weights(f)} {_weights(b)}" for i, (f, b) in enumerate(cells)})
    caption = "first the version that F reads, then the version that B reads; 2+3 is version 2, predicted 3 steps ahead"
    print_table(Table(f"{schedule.name}: weight versions that F and B read", tuple(rows), caption))


def _weights(use: Use) -> str:
    return f"{use.op.version}+{use.op.lookahead}" if use.op.lookahead else str(use.op.version)
