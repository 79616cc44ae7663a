"""The settings of a tuner as a grid: the best at each number of micro-batches M and of pipelines N."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pipesched.simulator import SimulationError
from pipesched.simulator.search import Outcome
from pipesched.simulator.tuner import Evaluator, pareto, ranked

_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_SIZES = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))


@dataclass(frozen=True, slots=True)
class ScaledQuantity:
    """A quantity of settings in the unit that people read it in.

    Attributes:
        title: Its name, with the unit.
        of: The number of a setting.
    """

    title: str
    of: Callable[[Outcome], float]


@dataclass(frozen=True, slots=True)
class SettingGrid:
    """Settings by M and N.

    Attributes:
        outcomes: All outcomes with a time and a memory.
        front: Outcomes that no other beats in time and memory at once, the fastest first.
        microbatches: M of each row, the most on top.
        pipelines: N of each column.
        cells: The best outcome of each row and column (the fastest that fits, else the fastest), or None.
        time: Seconds of a batch, in a unit.
        memory: Peak memory of a device, in a unit.
    """

    outcomes: tuple[Outcome, ...]
    front: tuple[Outcome, ...]
    microbatches: tuple[int, ...]
    pipelines: tuple[int, ...]
    cells: tuple[tuple[Outcome | None, ...], ...]
    time: ScaledQuantity
    memory: ScaledQuantity

    @property
    def quantities(self) -> tuple[ScaledQuantity, ...]:
        """Time and memory; time alone, where no setting holds any byte that is known."""
        return (self.time, self.memory) if any(map(_bytes, self.outcomes)) else (self.time,)

    @property
    def labels(self) -> tuple[list[str], list[str]]:
        """The labels of the columns, and of the rows."""
        return list(map(str, self.pipelines)), list(map(str, self.microbatches))

    @property
    def names(self) -> tuple[str, str]:
        """The quantities of columns and rows."""
        averaged = "; above 1: elastic averaging" if max(self.pipelines) > 1 else ""
        return f"pipelines N{averaged}", "micro-batches M of each pipeline"

    def place(self, outcome: Outcome) -> tuple[int, int]:
        """Return the row and column of an outcome."""
        setting = outcome.setting
        return self.microbatches.index(setting.num_each), self.pipelines.index(setting.num_pipelines)


def setting_grid(outcomes: Iterable[Outcome]) -> SettingGrid:
    """Return the grid of the outcomes whose time and memory are finite numbers.

    Raises:
        SimulationError: No outcome has both.
    """
    given = tuple(outcomes)
    known = tuple(o for o in given if math.isfinite(_seconds(o)) and math.isfinite(_bytes(o)))
    if not known:
        reason = next((f"; of the first: {outcome.reason}" for outcome in given if outcome.reason), "")
        raise SimulationError(
            f"outcomes: got {len(given)} without a time and a memory, expected at least one with both{reason}"
        )
    best: dict[tuple[int, int], Outcome] = {}
    for outcome in ranked(known, Evaluator.SIMULATE):
        best.setdefault((outcome.setting.num_each, outcome.setting.num_pipelines), outcome)
    ms, ns = sorted({m for m, _ in best}, reverse=True), sorted({n for _, n in best})
    return SettingGrid(
        outcomes=known,
        front=pareto(known),
        microbatches=tuple(ms),
        pipelines=tuple(ns),
        cells=tuple(tuple(best.get((m, n)) for n in ns) for m in ms),
        time=_quantity("time per batch", _TIMES, min(map(_seconds, best.values())), _seconds),
        memory=_quantity("memory", _SIZES, max(map(_bytes, known)), _bytes),
    )


def _seconds(outcome: Outcome) -> float:
    return math.nan if outcome.seconds is None else outcome.seconds


def _bytes(outcome: Outcome) -> float:
    return math.nan if outcome.held_bytes is None else outcome.held_bytes


def _quantity(
    name: str, units: Sequence[tuple[str, float]], value: float, of: Callable[[Outcome], float]
) -> ScaledQuantity:
    """Return a quantity in the largest unit that `value` has one of, or in the smallest."""
    unit, size = next((unit for unit in units if value >= unit[1]), units[-1])
    return ScaledQuantity(f"{name} [{unit}]", lambda outcome: of(outcome) / size)
