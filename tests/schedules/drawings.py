"""Grids as the docstrings draw them: every op takes one column and starts as early as it can."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Compute
from tests.schedules.builder_rules import finish_times, parts


def drawn(
    schedule: Schedule,
    transfer: int = 0,
    columns: int | None = None,
    cell: Callable[[Compute], str] = lambda op: f"{op.phase.value}{op.microbatch}",
) -> list[list[str]]:
    """Return the cells of each rank; a message to another rank takes `transfer` columns."""
    over = finish_times(schedule, transfer_s=transfer)
    grid = [[".."] * round(max(over.values())) for _ in schedule.ops]
    for row, ops in zip(grid, schedule.ops, strict=True):
        for op in parts(ops):
            row[round(over[op]) - 1] = cell(op)
    return [row[:columns] for row in grid]


def cells(drawing: str) -> list[list[str]]:
    """Return the cells of a drawing, without its ``rank k``."""
    return [line.split()[2:] for line in dedent(drawing).strip().splitlines()]


def is_in(drawing: str, docstring: str | None) -> bool:
    """Whether the module's docstring shows this very drawing."""
    assert docstring is not None
    return indent(dedent(drawing).strip(), "    ") in docstring
