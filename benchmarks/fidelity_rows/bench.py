"""What all rows share: runs with a yardstick before each, that may fail, in rounds that end in time."""

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
"""No further round begins that would end later than so long after the first [s]."""

Result = TypeVar("Result")
StepErrors = Sequence[tuple[float, float]]
"""The seconds of the step, or of both if two are compared, and the relative error of what was said, of every run."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the benchmark: what it measures, its goal, and what makes its section.

    Attributes:
        title: Title of the section.
        goal: What is to be reached.
        rounds: Rounds unless told otherwise.
        round_s: What one takes on a quiet machine of two cores, about [s].
        lines: From a number of rounds to the section.
        runs: What makes the runs, where another row looks at the same; then they are made once.
    """

    title: str
    goal: str
    rounds: int
    round_s: float
    lines: Callable[[int], Iterator[str]]
    runs: Callable[[int], object] | None = None


class Bench:
    """The runs of a row: what the machine was like before each, and which failed."""

    def __init__(self) -> None:
        self._yardsticks_s: list[float] = []
        self._failures: list[str] = []
        self._rounds = ""

    def rounds(self, count: int) -> Iterator[int]:
        """Yield the numbers of the rounds, as long as there is time for another."""
        begun_s = time.monotonic()
        for index in range(count):
            spent_s = time.monotonic() - begun_s
            if index and spent_s * (index + 1) / index > LIMIT_S:
                break
            print(f"round {index + 1} of {count}", file=sys.stderr, flush=True)
            self._rounds = f"{index + 1} of {count} rounds. "
            yield index

    def run(self, what: str, measure: Callable[[], Result]) -> Result | None:
        """Look at the machine, then do as `tried`."""
        self._yardsticks_s.append(yardstick_s(NUM_RANKS))
        return self.tried(what, measure)

    def tried(self, what: str, measure: Callable[[], Result]) -> Result | None:
        """Return what is measured; None of what fails, which is told, and the others go on."""
        try:
            return measure()
        except Exception as error:  # noqa: BLE001 -- whatever ends one run must not end the others
            self._failures.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            print(self._failures[-1], file=sys.stderr, flush=True)
            return None

    def lines(self) -> Iterator[str]:
        """Yield how steady the machine was, and what failed."""
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
    """Return both, as people read them."""
    return f"{middle(errors):+.1%} ({undisturbed(errors):+.1%})"


def verdict(limit: float, errors: Mapping[str, StepErrors]) -> Iterator[str]:
    """Yield which cases are within `limit`, by the median of their runs and by the least disturbed."""
    yield f"Medians: {within(limit, {case: middle(several) for case, several in errors.items()})}"
    yield f"Least disturbed quarter: {within(limit, {case: undisturbed(several) for case, several in errors.items()})}"
