"""What a row of the benchmark is, and how what it compares takes turns."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure beside its goal.

    Attributes:
        what: What was measured.
        goal: What is to be reached.
        figure: What was.
        is_reached: Whether that is the goal; None where there is none.
    """

    what: str
    goal: str
    figure: str
    is_reached: bool | None

    def line(self) -> str:
        """Return the line of the table."""
        verdict = {True: "yes", False: "no", None: ""}[self.is_reached]
        return f"| {self.what} | {self.goal} | {self.figure} | {verdict} |"


@dataclass(frozen=True, slots=True)
class Row:
    """A group of figures, and what makes them.

    Attributes:
        title: Their heading.
        how: How they are measured.
        figures: Measures them, one after the other.
    """

    title: str
    how: str
    figures: Callable[[], Iterator[Figure]]


def turns(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Let some runs take turns; return the processor time of each of their turns [s]."""
    took_s: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()
            begun_s = time.process_time()
            run()
            took_s[name].append(time.process_time() - begun_s)
    return took_s


def ratio(slow_s: Sequence[float], quick_s: Sequence[float]) -> float:
    """Return how many times as quick the second is, the median of the turns."""
    return statistics.median(slow / quick for slow, quick in zip(slow_s, quick_s, strict=True))


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    """Return a run that is so many of them, as a short one is below what a clock tells."""

    def runs() -> None:
        for _ in range(times):
            run()

    return runs


def whole_process_s(arguments: Sequence[str], rounds: int) -> float:
    """Return how long a command of pipesched takes, the median [s].

    Its byte code is on disk, as it is of what pip installed: a run that is not measured writes what is not there yet.
    """
    took_s = []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(1 + rounds):
        begun_s = time.perf_counter()
        command = [sys.executable, "-P", "-m", "pipesched", *arguments]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        took_s.append(time.perf_counter() - begun_s)
    return statistics.median(took_s[1:])
