"""The regret of the tuner's choice, with a fresh profile and a short race, in a grid whose settings were all run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from tuner import MODELS, PIPELINES

import pipesched
from fidelity_rows.bench import Bench, Row
from pipesched import ArgumentError, Cluster, Profile
from pipesched.profiles.processes import num_companions
from pipesched.questions import MeasureSettings
from pipesched.simulator.analysis import readable_s
from pipesched.simulator.search import Setting
from pipesched.workflows.measuring import profile_links
from pipesched.workflows.tuning import Measurement, TuneResult

Result = TypeVar("Result")

GRIDS = {kind: (model, batch_size, microbatches[:-1]) for kind, (model, batch_size, microbatches) in MODELS.items()}
LIMIT, SHARE, ITERATIONS = 0.05, 0.10, 12
CONTENDERS = (4, 3, 2, 1)
"""Numbers of contenders beside plain 1F1B; the largest number counts whose round fits into the time."""
COUNTED = 0.4
"""Share of the time that a race gets as its budget: the run before the race does not count, and the first round
always finishes."""


def profile(kind: str) -> Profile:
    """Return a fresh profile at the micro-batch sizes of the grid."""
    model, batch_size, microbatches = GRIDS[kind]
    sizes = sorted(batch_size // m for m in microbatches)
    return pipesched.profile(model, sizes, repeats=5, companions=num_companions(2), splits=False).profile


def tuned(kind: str, measured: Profile, links: Cluster, **how: Any) -> TuneResult:
    """Return the tuner's result on the grid."""
    _, batch_size, microbatches = GRIDS[kind]
    return pipesched.tune(
        pipesched.Setup(measured, links, partition="uniform"),
        batch_size=batch_size,
        microbatches=microbatches,
        pipelines=PIPELINES,
        advances=[0],
        num_workers=1,
        **how,
    )


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of settings, all of which were run.

    Attributes:
        seconds: Seconds of a batch, for every setting.
        traversal_s: Seconds of all runs together.
    """

    kind: str
    seconds: dict[Setting, float]
    traversal_s: float

    @property
    def best(self) -> Setting:
        """The fastest setting."""
        return min(self.seconds, key=lambda setting: self.seconds[setting])

    def regret(self, setting: Setting) -> float:
        """Return the extra time of `setting` over the best, as a share."""
        return self.seconds[setting] / self.seconds[self.best] - 1

    def text(self, setting: Setting) -> str:
        """Return (M, N) and the seconds as text."""
        return f"({setting.num_each}, {setting.num_pipelines}), {readable_s(self.seconds[setting])}"


def traversed(kind: str, links: Cluster, bench: Bench) -> Grid:
    """Run every setting of the grid twice, forth and back, and return the grid: single runs would favour luck."""
    result = tuned(kind, profile(kind), links)
    measure = Measurement(result.problem, MeasureSettings(iterations=ITERATIONS))
    settings = [outcome.setting for outcome in result.outcomes]
    seconds: dict[Setting, list[float]] = {setting: [] for setting in settings}
    traversal_s = 0.0
    for setting in (*settings, *settings[::-1]):
        run = bench.run(f"{kind} {setting}", partial(timed, partial(measure, setting)))
        if run is not None and run[0].seconds is not None:
            seconds[setting].append(run[0].seconds)
            traversal_s += run[1]
    return Grid(kind, {setting: fmean(twice) for setting, twice in seconds.items() if twice}, traversal_s)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of `work`, and its seconds."""
    begun_s = time.monotonic()
    return work(), time.monotonic() - begun_s


def raced(grid: Grid, links: Cluster) -> TuneResult:
    """Return the choice with a fresh profile and a race, or without a race if no round fits into the time."""
    begun_s = time.monotonic()
    measured = profile(grid.kind)
    for num_contenders in CONTENDERS:
        left_s = SHARE * grid.traversal_s - (time.monotonic() - begun_s)
        budget_s = max(COUNTED * left_s, 1e-3)
        with suppress(ArgumentError):  # a round takes longer
            return tuned(grid.kind, measured, links, budget_s=budget_s, num_contenders=num_contenders)
    return tuned(grid.kind, measured, links)


def chosen(grid: Grid, links: Cluster) -> tuple[float, float, str]:
    """Return a choice's regret and share of the traversal's time, and a line of text with both and the settings."""
    result, took_s = timed(partial(raced, grid, links))
    assert result.chosen is not None, "all settings fit"
    setting, share = result.chosen.setting, took_s / grid.traversal_s
    race = "no race" if result.race is None else f"{len(result.race.contenders)}, {result.race.num_rounds}"
    settings = f"{grid.text(grid.best)} | {grid.text(setting)}"
    line = (
        f"| {grid.kind} | {grid.traversal_s:.0f} s | {settings} | {grid.regret(setting):.1%} | {share:.1%} | {race} |"
    )
    return grid.regret(setting), share, line


def lines(num_rounds: int) -> Iterator[str]:
    """Yield the lines of this row's section."""
    bench = Bench()
    links = profile_links().cluster
    yield "Every setting of a grid, that of `benchmarks/tuner.py` without its largest M, is run twice: the traversal."
    yield f"Then, {num_rounds} times, the model is profiled, and `tune --budget` races in what is left of {SHARE:.0%}"
    yield "of its time, with as many contenders as one round has time for. Links are measured once for all."
    yield ""
    yield "| model | traversal | best (M, N) | chosen | regret | time | contenders, rounds |"
    yield "|---|---|---|---|---|---|---|"
    choices = []
    for kind in GRIDS:
        grid = bench.tried(f"grid of {kind}", partial(traversed, kind, links, bench))
        for _ in range(num_rounds if grid else 0):
            assert grid is not None
            choice = bench.run(f"race of {kind}", partial(chosen, grid, links))
            if choice is not None:
                choices.append(choice)
                yield choice[2]
    num_right, num_quick = (
        sum(regret <= LIMIT for regret, *_ in choices),
        sum(share <= SHARE for _, share, _ in choices),
    )
    yield ""
    yield f"Regret of at most {LIMIT:.0%}: {num_right} of {len(choices)}; within {SHARE:.0%} of the time: {num_quick}."
    yield from bench.lines()


ROW = Row(
    "The tuner's regret against the measured grid",
    "at most 5 % with each of three fresh profiles, in at most 10 % of the traversal's time",
    3,
    300.0,
    lines,
)
