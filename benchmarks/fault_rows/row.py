"""A row of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

Section: TypeAlias = Generator[str, None, bool]
"""The lines of a section; returns whether all guarantees held."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of fault, and the function that makes its section.

    Attributes:
        title: Title of the section.
        goal: The goal.
        count: Default number of faults.
        lines: Function from a number of faults to the lines of the section.
        is_beside: Whether the row runs with low priority beside the other rows, and may outlast them.
    """

    title: str
    goal: str
    count: int
    lines: Callable[[int], Section]
    is_beside: bool = False
