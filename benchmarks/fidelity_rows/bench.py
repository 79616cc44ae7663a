"""Shared parts of all rows: rounds with a time limit, and runs that may fail, with a yardstick before each run."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from report import within

from pipesched.profiles.measuring import yardstick_s
from pipesched.simulator.analysis import readable_s

NUM_RANKS = 2
LIMIT_S = 540.0
"""Time limit of all rounds together: no round begins that would end later [s]."""

Result = TypeVar("Result")
StepErrors = Sequence[tuple[float, float]]
"""For every run: seconds of the step, or of both compared steps, and the relative error of the prediction."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the benchmark: its title, its goal, and the function that makes its section.

    Attributes:
        title: Title of the section.
        goal: The goal.
        rounds: Default number of rounds.
        round_s: Approximate time of a round on a quiet machine of two cores [s].
        lines: Function from a number of rounds to the lines of the section.
        runs: Function that makes the runs if several rows share them; it is called once.
    """

    title: str
    goal: str
    rounds: int
    round_s: float
    lines: Callable[[int], Iterator[str]]
    runs: Callable[[int], object] | None = None


class Bench:
    """The runs of a row: the yardstick before each run, and the failures."""

    def __init__(self) -> None:
        self._yardsticks_s: list[float] = []
        self._failures: list[str] = []
        self._rounds = ""

    def rounds(self, count: int) -> Iterator[int]:
        """Yield the numbers of the rounds, until the time is too short for another round."""
        begun_s = time.monotonic()
        for index in range(count):
            spent_s = time.monotonic() - begun_s
            if index and spent_s * (index + 1) / index > LIMIT_S:
                break
            print(f"round {index + 1} of {count}", file=sys.stderr, flush=True)
            self._rounds = f"{index + 1} of {count} rounds. "
            yield index

    def run(self, what: str, measure: Callable[[], Result]) -> Result | None:
        """Time the yardstick, then return the result of `tried`."""
        self._yardsticks_s.append(yardstick_s(NUM_RANKS))
        return self.tried(what, measure)

    def tried(self, what: str, measure: Callable[[], Result]) -> Result | None:
        """Return the result of `measure`; if it fails, report the error and return None."""
        try:
            return measure()
        except Exception as error:  # noqa: BLE001 -- a failed run must not end the other runs
            self._failures.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            print(self._failures[-1], file=sys.stderr, flush=True)
            return None

    def lines(self) -> Iterator[str]:
        """Yield the range of the yardstick, and the failures."""
        low, median, high = (readable_s(f(self._yardsticks_s)) for f in (min, statistics.median, max))
        yield ""
        yield f"{self._rounds}Yardstick before every run: {low} to {high}, median {median}."
        yield from (f"\n**Failed.** {failure}" for failure in self._failures)


def middle(errors: StepErrors) -> float:
    """Return the median error."""
    return statistics.median(error for _, error in errors)


def undisturbed(errors: StepErrors) -> float:
    """Return the median error of the quarter with the shortest steps."""
    return middle(sorted(errors)[: max(1, len(errors) // 4)])


def cell(errors: StepErrors) -> str:
    """Return the cell of a table: the median error, and the error of the least disturbed quarter."""
    return f"{middle(errors):+.1%} ({undisturbed(errors):+.1%})"


def verdict(limit: float, errors: Mapping[str, StepErrors]) -> Iterator[str]:
    """Yield the number of cases within `limit`, by the median of their runs and by the least disturbed quarter."""
    yield f"Medians: {within(limit, {case: middle(several) for case, several in errors.items()})}"
    yield f"Least disturbed quarter: {within(limit, {case: undisturbed(several) for case, several in errors.items()})}"
