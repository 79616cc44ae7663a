"""A row of the benchmark on a GPU: its title, its goal, its time, and what makes its section."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpu_rows.card import Card


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the benchmark.

    Attributes:
        title: What is measured.
        goal: The goal.
        seconds: Time on a GPU, at most [s]: no case begins later.
        lines: From the device to the lines of the section.
    """

    title: str
    goal: str
    seconds: float
    lines: Callable[[Card], Iterator[str]]
