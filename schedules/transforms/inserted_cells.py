"""Cells that a transform inserts into columns: held lists are changed without making ops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pipesched.schedules import OpColumns, machine_code


def with_cells(columns: OpColumns, num_added: Sequence[int], places: Any, cells: Sequence[Any]) -> OpColumns:
    """Return columns with k more cells.

    Args:
        columns: n cells of R ranks; in lists, or in NumPy's arrays.
        num_added: Number of new cells of each rank.
        places: k indices, ascending: the cell of `columns` that each comes before; n, or the first cell of the next
            rank, behind a rank's last.
        cells: Columns of the k cells: codes, stages, micro-batches, others and look-aheads; of the latter two, columns
            that `columns` lacks do not count.

    Returns:
        The columns, as lists or arrays like `columns`.
    """
    begins = [int(begin) for begin in columns.begins]
    begins = [begin + more for begin, more in zip(begins, accumulate(num_added, initial=0), strict=True)]
    old = columns.codes, columns.stages, columns.microbatches, columns.others, columns.lookaheads
    new = (None if before is None else _inserted(before, places, more) for before, more in zip(old, cells, strict=True))
    return OpColumns(machine_code.converted(begins, in_arrays=not isinstance(columns.begins, list)), *new)


def in_form(columns: OpColumns) -> OpColumns:
    """Return columns that are all in lists, or all in NumPy's arrays if their codes are."""
    in_arrays = not isinstance(columns.codes, list)
    begins, codes, stages, microbatches, *rest = columns.in_form(in_arrays=in_arrays)
    others, lookaheads = (column if len(column) else None for column in rest)
    return OpColumns(begins, codes, stages, microbatches, others, lookaheads)


def _inserted(numbers: Any, places: Any, more: Any) -> Any:
    if not isinstance(numbers, list):
        import numpy as np

        return np.insert(numbers, places, more)
    result: list[int] = []
    begin = 0
    for place, number in zip(places, more, strict=True):
        result += numbers[begin:place]
        result.append(number)
        begin = place
    return result + numbers[begin:]
