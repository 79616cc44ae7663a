"""``pipesched tune``: which setting should I use?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipesched.errors import NEGATIVE
from pipesched.files import check_outputs, emit
from pipesched.jobs import RunOptions, require_epsilon
from pipesched.machine_options import MachineOptions
from pipesched.options import Json, Out, grouped
from pipesched.output import num_bytes, print_json, print_table, seconds
from pipesched.tune_measure import Measurement, require_model
from pipesched.tune_options import ProblemOptions, SpaceOptions
from pipesched.tune_search import Found, Method, search_all
from pipesched.tune_verify import print_verified, run_best, to_dict

if TYPE_CHECKING:
    from pipesched.simulator.tuner.evaluate import Problem
    from pipesched.simulator.tuner.outcome import Outcome

_SUFFIXES = (".csv", ".md", ".json")
_PICTURES = (".png", ".svg", ".pdf")


@grouped
def tune(
    problem: ProblemOptions,
    space: SpaceOptions = SpaceOptions(),  # noqa: B008 -- frozen
    machines: MachineOptions = MachineOptions(),  # noqa: B008
    runs: RunOptions = RunOptions(),  # noqa: B008
    evaluator: Annotated[
        Literal["simulate", "avgpipe", "measure", "max_num", "max_size"],
        typer.Option(
            help="Who chooses: our model, AvgPipe's equations, a run of every setting here, or a guideline (most or "
            "largest micro-batches)."
        ),
    ] = "simulate",
    accounting: Annotated[
        Literal["paper", "consistent"], typer.Option(help="AvgPipe's equations as printed, or all terms per iteration.")
    ] = "paper",
    workers: Annotated[int | None, typer.Option(help="Processes; unless given, as many as cores.", min=1)] = None,
    ray: Annotated[
        str | None, typer.Option(help="Ray cluster to search on in place of them: its address, or local.")
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option(help="Run the best K here, and plain 1F1B, and set them beside the prediction.", min=1),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="File that keeps what is found, so that a stopped search goes on from there.")
    ] = None,
    top: Annotated[int, typer.Option(help="Rows to show of those that fit, and of those that do not.", min=1)] = 10,
    plot: Annotated[Path | None, typer.Option(help="Draw time and memory over M and N: .png, .svg or .pdf.")] = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """Choose micro-batches M, pipelines N and more for a model, a batch and a memory limit (--out: .csv, .md, .json).

    A model is profiled here first, at the micro-batches that there may be.

    The batch is that of one pipeline: N of them are under way at once, and times are those of one. Exit code 1 when
    nothing fits.
    """
    check_outputs((plot, _PICTURES), (out, _SUFFIXES), (resume, ()))
    method = Method(evaluator, accounting, workers, ray, resume)
    method.require_possible(problem)
    loaded = problem.load(machines, space, runs)
    measurement = None
    if verify is not None or evaluator == "measure":
        runs.require_possible()
        require_epsilon(runs)
        require_model(loaded, "--verify" if verify is not None else "--evaluator measure")
        measurement = Measurement(loaded, runs)
    found = search_all(loaded, space.load(loaded).settings(), method, measurement)
    rows = [outcome.to_row() for outcome in found.outcomes]
    if plot is not None:
        from pipesched.simulator.tuner.picture import draw_heat_maps

        draw_heat_maps(
            found.outcomes, plot, f"{loaded.profile.model}, batch {loaded.batch_size}, {problem.devices} devices"
        )
    if out is not None:
        emit(_text(rows, out.suffix), out)
    verified = None
    if verify is not None and measurement is not None:
        verified = run_best(found.outcomes, found.plain, verify, measurement)
    if json:
        print_json(found.to_dict(rows) | ({} if verified is None else {"verified": to_dict(verified)}))
    elif out is None:
        _print(found, loaded, top)
    if verified is not None and not json and found.fitting:
        print_verified(verified)
    if not found.fitting:
        print(f"pipesched: {_nothing_fits(found, machines.memory_limit)}", file=sys.stderr)
        raise typer.Exit(NEGATIVE)


def _text(rows: list[dict[str, Any]], suffix: str) -> str:
    import json

    from pipesched.simulator.tables import to_csv, to_markdown

    if suffix == ".json":
        return json.dumps(rows, indent=2, allow_nan=False)
    return (to_csv if suffix == ".csv" else to_markdown)(rows)


def _print(found: Found, problem: Problem, top: int) -> None:
    fitting = found.fitting
    rejected = found.outcomes[len(fitting) :]
    if fitting:
        best, gain = fitting[0], found.gain(fitting[0])
        caption = f"chosen by {found.evaluator}: {best.setting}, {seconds(best.seconds or 0.0)} per batch"
        if found.plain is not None and gain is not None:
            caption += f"; {gain:.3g} x as fast as plain 1F1B at its best ({found.plain.setting})"
        if found.advanced is not None:
            caption += f"; advance={found.advanced.setting.advance} is the least that takes the time of AFAB"
        caption += "" if len(fitting) <= top else f"; {len(fitting) - top} slower ones are left out (--top, --out)"
        print_table(f"{len(fitting)} settings fit", _rows(found, fitting[:top], problem), caption)
    if rejected:
        more = "" if len(rejected) <= top else f"; {len(rejected) - top} more are left out (--top, --out)"
        print_table(f"{len(rejected)} settings are rejected{more}", _rejected(rejected[:top]))


def _rows(found: Found, outcomes: Sequence[Outcome], problem: Problem) -> list[dict[str, str]]:
    rows = []
    for number, outcome in enumerate(outcomes, 1):
        time_s, gain = outcome.seconds or 0.0, found.gain(outcome)
        rows.append(
            {
                "": str(number),
                **_named(outcome),
                "time per batch": seconds(time_s),
                "samples/s": f"{problem.batch_size / time_s:.4g}" if time_s else "-",
                "memory": num_bytes(outcome.held_bytes),
                "over plain 1F1B": "-" if gain is None else f"{gain:.3f} x",
            }
        )
    return rows


def _rejected(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    return [
        {
            **_named(outcome),
            "time per batch": "-" if outcome.seconds is None else seconds(outcome.seconds),
            "memory": num_bytes(outcome.held_bytes),
            "why": outcome.reason or "",
        }
        for outcome in outcomes
    ]


def _named(outcome: Outcome) -> dict[str, str]:
    setting = outcome.setting
    return {
        "schedule": setting.schedule,
        "M": str(setting.num_microbatches),
        "N": str(setting.num_pipelines),
        "advance": "-" if setting.advance is None else str(setting.advance),
        "chunks": "-" if setting.num_chunks is None else str(setting.num_chunks),
        "recompute": "yes" if setting.recomputes else "no",
    }


def _nothing_fits(found: Found, limit: str | None) -> str:
    from pipesched.simulator.tuner.outcome import least

    nearest = least(found.outcomes)
    assert nearest is not None, "some setting has a time, and so a memory"
    needed = f"{nearest.held_bytes} bytes ({num_bytes(nearest.held_bytes)})"
    return (
        f"nothing fits into {limit or 'what the devices have'}: {nearest.setting} needs least, {needed}; "
        f"try --memory-limit {nearest.held_bytes}, --recompute both, more --devices"
    )
