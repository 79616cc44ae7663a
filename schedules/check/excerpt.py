"""Excerpts of a schedule's grid around some ops.

rank 0  0F0 >0B0< 0F1 ...     here 0B0 is marked, and ops further than a few ops from a mark are left out
rank 1  >1F1< 1B1 1F0 ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pipesched.schedules import Schedule
from pipesched.schedules.semantics import ListPosition

_AROUND = 2
"""Ops shown before and after each mark."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One op, or several omitted ones."""

    text: str
    is_marked: bool = False


def excerpt(schedule: Schedule, places: Iterable[ListPosition]) -> dict[int, tuple[Cell, ...]]:
    """Return a row of cells for each rank of `places`: the ops at these places, marked, and the ops around them."""
    marked: defaultdict[int, set[int]] = defaultdict(set)
    for rank, index in places:
        marked[rank].add(index)
    rows: dict[int, tuple[Cell, ...]] = {}
    for rank, marks in sorted(marked.items()):
        row = schedule.ops[rank]
        near = {at for mark in marks for at in range(mark - _AROUND, mark + _AROUND + 1)} & set(range(len(row)))
        cells: list[Cell] = []
        shown = -1
        for index in sorted(near):
            if index > shown + 1:
                cells.append(Cell("..."))
            cells.append(Cell(str(row[index]), index in marks))
            shown = index
        if shown < len(row) - 1:
            cells.append(Cell("..."))
        rows[rank] = tuple(cells)
    return rows
