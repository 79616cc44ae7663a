"""Grids as the docstrings draw them: every op takes one column and starts as early as it can."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Compute, computes
from tests.schedules.brute_force import made, wanted


def drawn(
    schedule: Schedule,
    transfer: int = 0,
    columns: int | None = None,
    cell: Callable[[Compute], str] = lambda op: f"{op.phase.value}{op.microbatch}",
) -> list[list[str]]:
    """Return the cells of each rank; a message to another rank takes `transfer` columns."""
    rows = [[part for op in row for part in computes(op)] for row in schedule.ops]
    begin = {op: 0 for row in rows for op in row}
    home = {op: rank for rank, row in enumerate(rows) for op in row}
    maker = {thing: op for op in begin for thing in made(op)}
    for _ in range(2 * len(begin)):  # long enough to settle: longest paths have fewer ops
        settled = dict(begin)
        for row in rows:
            free = 0
            for op in row:
                before = [maker[thing] for thing in wanted(op, schedule.num_stages)]
                arrivals = [begin[b] + 1 + (transfer if home[b] != home[op] else 0) for b in before]
                begin[op] = max([free, *arrivals])
                free = begin[op] + 1
        if begin == settled:
            break
    width = max(begin.values()) + 1
    grid = [[".."] * width for _ in rows]
    for op, column in begin.items():
        grid[home[op]][column] = cell(op)
    return [row[:columns] for row in grid]


def cells(drawing: str) -> list[list[str]]:
    """Return the cells of a drawing, without its ``rank k``."""
    return [line.split()[2:] for line in dedent(drawing).strip().splitlines()]


def is_in(drawing: str, docstring: str | None) -> bool:
    """Whether the module's docstring shows this very drawing."""
    assert docstring is not None
    return indent(dedent(drawing).strip(), "    ") in docstring
