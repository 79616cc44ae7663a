"""A row of the benchmark, and measurements in turns."""

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
        what: The measured quantity.
        goal: The goal.
        figure: The measured figure.
        is_reached: Whether the figure reaches the goal; None without a goal.
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
    """A group of figures, and their measurement.

    Attributes:
        title: Heading of the figures.
        how: The way of the measurement, in words.
        figures: Function that measures and yields the figures.
    """

    title: str
    how: str
    figures: Callable[[], Iterator[Figure]]


def turns(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Let the runs take turns; return the processor time of each turn of each run [s]."""
    took_s: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()
            begun_s = time.process_time()
            run()
            took_s[name].append(time.process_time() - begun_s)
    return took_s


def ratio(slow_s: Sequence[float], quick_s: Sequence[float]) -> float:
    """Return the speed-up of the second over the first, as the median of the turns."""
    return statistics.median(slow / quick for slow, quick in zip(slow_s, quick_s, strict=True))


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    """Return a run that repeats a short run `times` times, because the clock is too coarse for one."""

    def runs() -> None:
        for _ in range(times):
            run()

    return runs


def whole_process_s(arguments: Sequence[str], rounds: int) -> float:
    """Return the median time of a command of pipesched [s].

    Its byte code is on disk, as after an installation by pip: a first run without measurement writes it.
    """
    took_s = []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(1 + rounds):
        begun_s = time.perf_counter()
        command = [sys.executable, "-P", "-m", "pipesched", *arguments]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        took_s.append(time.perf_counter() - begun_s)
    return statistics.median(took_s[1:])
