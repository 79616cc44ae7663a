"""Insertion of cells into columns, so that transforms change lists in memory without making ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipesched.schedules.columns import OpColumns


def with_cells(
    columns: OpColumns, num_added: Sequence[int], places: npt.ArrayLike, cells: Sequence[npt.ArrayLike | None]
) -> OpColumns:
    """Return columns with k more cells.

    Args:
        columns: n cells of R ranks.
        num_added: Number of new cells of each rank.
        places: k ascending indices of the cells of `columns` that they come before. A cell at the end of a rank's
            list has the index of the next rank's first cell, or n.
        cells: Columns of the k cells: codes, stages, micro-batches, others and look-aheads; the latter two are
            ignored if `columns` lacks them.
    """
    begins = columns.begins + np.cumsum([0, *num_added], dtype=np.int32)
    at = np.asarray(places, np.int64)

    def inserted(column: npt.NDArray[np.int32], more: npt.ArrayLike | None) -> npt.NDArray[np.int32]:
        return np.insert(column, at, np.asarray(more, column.dtype))

    codes, stages, microbatches, others, lookaheads = cells
    return OpColumns(
        begins,
        np.insert(columns.codes, at, np.asarray(codes, np.int8)),
        inserted(columns.stages, stages),
        inserted(columns.microbatches, microbatches),
        None if columns.others is None else inserted(columns.others, others),
        None if columns.lookaheads is None else inserted(columns.lookaheads, lookaheads),
    )
