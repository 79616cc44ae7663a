"""The columns of several lists one behind the other, for loops over many lists at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from pipesched.schedules.op_columns import OpColumns
from pipesched.schedules.spelled_cells import write_out


class JoinedColumns(NamedTuple):
    """Columns of k lists, in lists or in NumPy's arrays.

    Attributes:
        offsets: k + 1 numbers: where the cells of each list begin, and the end.
        begins: Where the cells of each rank of each list begin, from 0 on, and the end.
        codes: Codes, as in `OpColumns`.
        stages: Stages.
        microbatches: Micro-batches.
    """

    offsets: Any
    begins: Any
    codes: Any
    stages: Any
    microbatches: Any

    @staticmethod
    def of(columns: Sequence[OpColumns], *, in_arrays: bool) -> JoinedColumns:
        """Return the columns of lists that have no messages, versions or look-aheads."""
        offsets = [*accumulate((lists.num_cells for lists in columns), initial=0)]
        if not in_arrays:
            forms = [lists.in_form(in_arrays=False)[:4] for lists in columns]
            return JoinedColumns(offsets, *([*chain.from_iterable(column)] for column in zip(*forms, strict=True)))
        import numpy as np

        spelled = [lists.cells for lists in columns if lists.cells is not None]
        if len(spelled) == len(columns):
            begins = np.array([cells.begins for cells in spelled], np.int32).ravel()
            return JoinedColumns(np.array(offsets), begins, *write_out(spelled))
        forms = [lists.in_form(in_arrays=True)[:4] for lists in columns]
        return JoinedColumns(np.array(offsets), *map(np.concatenate, zip(*forms, strict=True)))
