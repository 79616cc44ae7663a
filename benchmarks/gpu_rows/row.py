"""A row of the benchmark on a GPU: title, goal, time limit, and the function that yields its section."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpu_rows.card import Card


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the benchmark.

    Attributes:
        title: Title of the section.
        goal: The goal.
        seconds: Longest time on a GPU [s]: no case begins later.
        lines: Function from the device to the lines of the section.
    """

    title: str
    goal: str
    seconds: float
    lines: Callable[[Card], Iterator[str]]
