"""``pipesched tune``: which setting should I use?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipesched.errors import NEGATIVE, InputError
from pipesched.files import check_outputs, emit
from pipesched.jobs import RunOptions
from pipesched.machine_options import MachineOptions
from pipesched.options import Json, Out, grouped
from pipesched.output import num_bytes, print_json, print_table, progress, seconds
from pipesched.tune_options import ProblemOptions, SpaceOptions
from pipesched.tune_verify import print_verified, require_model, run_best, to_dict

if TYPE_CHECKING:
    from simulator.tuner.evaluate import Problem
    from simulator.tuner.outcome import Outcome

_SUFFIXES = (".csv", ".md", ".json")
_PICTURES = (".png", ".svg", ".pdf")


@grouped
def tune(
    problem: ProblemOptions,
    space: SpaceOptions = SpaceOptions(),  # noqa: B008 -- frozen
    machines: MachineOptions = MachineOptions(),  # noqa: B008
    runs: RunOptions = RunOptions(),  # noqa: B008
    evaluator: Annotated[
        Literal["simulate", "avgpipe", "max_num", "max_size"],
        typer.Option(
            help="Who chooses: our model, AvgPipe's equations, or a guideline (most or largest micro-batches)."
        ),
    ] = "simulate",
    accounting: Annotated[
        Literal["paper", "consistent"], typer.Option(help="AvgPipe's equations as printed, or all terms per iteration.")
    ] = "paper",
    workers: Annotated[int | None, typer.Option(help="Processes; unless given, as many as cores.", min=1)] = None,
    verify: Annotated[
        int | None, typer.Option(help="Run the best K of one pipeline here, and set them beside the prediction.", min=1)
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

    The batch is that of one pipeline: N of them are under way at once, and times are those of one. Exit code 1 when
    nothing fits.
    """
    check_outputs((plot, _PICTURES), (out, _SUFFIXES), (resume, ()))
    if resume is not None and evaluator == "avgpipe":
        raise InputError("--resume: got it with --evaluator avgpipe, whose equations take no time; leave it out")
    loaded = problem.load(machines)
    if verify is not None:
        runs.require_possible()
        require_model(loaded)
    found = _found(loaded, space, evaluator, accounting, workers, resume)
    rows = [outcome.to_row() for outcome in found.outcomes]
    if plot is not None:
        from simulator.tuner.picture import draw_heat_maps

        draw_heat_maps(
            found.outcomes, plot, f"{loaded.profile.model}, batch {loaded.batch_size}, {problem.devices} devices"
        )
    if out is not None:
        emit(_text(rows, out.suffix), out)
    verified = None if verify is None else run_best(loaded, found.outcomes, verify, runs)
    if json:
        print_json(found.to_dict(rows) | ({} if verified is None else {"verified": to_dict(verified)}))
    elif out is None:
        _print(found, loaded, top)
    if verified is not None and not json and found.fitting:
        print_verified(verified, found.fitting[0])
    if not found.fitting:
        print(f"pipesched: {_nothing_fits(found, machines.memory_limit)}", file=sys.stderr)
        raise typer.Exit(NEGATIVE)


@dataclass(frozen=True, slots=True)
class _Found:
    """All settings, ranked by the evaluator.

    Attributes:
        outcomes: The chosen one first, the rejected last.
        plain: 1F1B at its best M; None if it does not fit.
        advanced: The chosen one with the smallest advance that takes AFAB's time, by our model; None if none does.
    """

    evaluator: str
    outcomes: tuple[Outcome, ...]
    plain: Outcome | None
    advanced: Outcome | None

    @property
    def fitting(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.fits)

    def gain(self, outcome: Outcome) -> float | None:
        """Return how many times as fast as plain 1F1B a setting is."""
        if self.plain is None or self.plain.seconds is None or not outcome.seconds:
            return None
        return self.plain.seconds / outcome.seconds

    def to_dict(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        best = self.fitting[0] if self.fitting else None
        return {
            "evaluator": self.evaluator,
            "chosen": None if best is None else best.to_row(),
            "plain_1f1b": None if self.plain is None else self.plain.to_row(),
            "gain_over_plain_1f1b": None if best is None else self.gain(best),
            "smallest_advance_as_fast_as_afab": None if self.advanced is None else self.advanced.setting.advance,
            "settings": rows,
        }


def _found(
    problem: Problem, space: SpaceOptions, evaluator: str, accounting: str, workers: int | None, resume: Path | None
) -> _Found:
    from profiles.host import num_cores
    from simulator.tuner.journal import Journal
    from simulator.tuner.outcome import Evaluator, plain, ranked
    from simulator.tuner.predictor import Accounting
    from simulator.tuner.search import search

    settings = space.load(problem).settings()
    who = Evaluator(evaluator)
    few = len(settings) < 100 or who is Evaluator.AVGPIPE  # then starting processes takes longer than the work
    with progress(f"tuning over {len(settings)} settings") as tick:
        outcomes = search(
            problem,
            settings,
            who,
            accounting=Accounting(accounting),
            workers=1 if few and workers is None else workers or num_cores(),
            tick=tick,
            journal=None if resume is None else Journal(resume, problem),
        )
    if all(outcome.seconds is None for outcome in outcomes):
        raise InputError(f"none of {len(outcomes)} settings can be; the first: {outcomes[0].reason}")
    in_order = ranked(outcomes, who)
    return _Found(evaluator, in_order, plain(outcomes), _advanced(problem, in_order[0]))


def _advanced(problem: Problem, chosen: Outcome) -> Outcome | None:
    from simulator.tuner.advance import smallest_advance
    from simulator.tuner.evaluate import evaluate

    if chosen.setting.advance is None or not chosen.fits:
        return None
    return smallest_advance(partial(evaluate, problem), chosen.setting)


def _text(rows: list[dict[str, Any]], suffix: str) -> str:
    import json

    from simulator.tables import to_csv, to_markdown

    if suffix == ".json":
        return json.dumps(rows, indent=2, allow_nan=False)
    return (to_csv if suffix == ".csv" else to_markdown)(rows)


def _print(found: _Found, problem: Problem, top: int) -> None:
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


def _rows(found: _Found, outcomes: Sequence[Outcome], problem: Problem) -> list[dict[str, str]]:
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


def _nothing_fits(found: _Found, limit: str | None) -> str:
    from simulator.tuner.outcome import least

    nearest = least(found.outcomes)
    assert nearest is not None, "some setting has a time, and so a memory"
    needed = f"{nearest.held_bytes} bytes ({num_bytes(nearest.held_bytes)})"
    return (
        f"nothing fits into {limit or 'what the devices have'}: {nearest.setting} needs least, {needed}; "
        f"try --memory-limit {nearest.held_bytes}, --recompute both, more --devices"
    )
