"""What a row of the benchmark is."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

Section: TypeAlias = Generator[str, None, bool]
"""The lines of a section; returns whether all was as promised."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of fault, and what makes its section.

    Attributes:
        title: What is done.
        goal: What is to be reached.
        count: Faults unless told otherwise.
        lines: From a number of faults to the section.
        is_beside: Whether it takes what the others leave of the machine, as long as they last and longer.
    """

    title: str
    goal: str
    count: int
    lines: Callable[[int], Section]
    is_beside: bool = False
