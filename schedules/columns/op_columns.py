"""Op lists as columns of numbers: all ranks one after the other, a cell for each computation, message or Step.

    rank 0   0F0  0B0  0STEP              rank 1   (1F1;1B0)OVERLAP_F_B  1RECV_F2

    cell            0    1    2             3                4    5
    codes           F    B    STEP          F + OVERLAPPED   B    RECV_F
    stages          0    0    0             1                1    0      of a message the stage that makes it
    microbatches    0    0    0             1                0    2      0 for words of a stage
    others          0    0    0             0                0    0      peer; version; content of a Reduce
    begins          0                       3                     6

A builder calls ``make_schedule(name, num_stages, num_microbatches, OpColumns(begins, codes, stages, microbatches))``,
with arrays of int32 (codes: int8), which are used without a copy, or with other sequences of numbers. Ops are made on
first access, and then kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, final, overload

import numpy as np
import numpy.typing as npt

from pipesched.schedules.columns.machine_code import Int8s, Int32s, bounds, int32s
from pipesched.schedules.columns.op_cells import (
    LATE_R,
    OVERLAPPED,
    REDUCE,
    RESHARD,
    SEND_F,
    STEP,
    GrowingCells,
    I,
    R,
    W,
    op_of_cell,
)
from pipesched.schedules.ops import Compute, Op, Overlap, Recv, Send

_MESSAGES = frozenset(range(SEND_F, REDUCE))
_POSTS = frozenset({Send, Recv})


class Cells(NamedTuple):
    """The columns of n cells of R ranks, for loops.

    Attributes:
        begins: R + 1 indices: where the cells of each rank begin, and n.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        others: n peers, versions and contents, or empty.
        lookaheads: n look-aheads, or empty.
    """

    begins: Int32s
    codes: Int8s
    stages: Int32s
    microbatches: Int32s
    others: Int32s
    lookaheads: Int32s


@final
class OpColumns:
    """The ops of all R ranks as columns; n cells in all.

    Args:
        begins: R + 1 indices: where the cells of each rank begin, and n.
        codes: n codes, as above.
        stages: n stages.
        microbatches: n micro-batches; 0 for words of a stage.
        others: n ranks of peers (messages), versions (computations) and contents (Reduces), or None if all are 0 and
            there are no messages.
        lookaheads: n look-aheads of computations, or None for 0.
    """

    def __init__(
        self,
        begins: npt.ArrayLike,
        codes: npt.ArrayLike,
        stages: npt.ArrayLike,
        microbatches: npt.ArrayLike,
        others: npt.ArrayLike | None = None,
        lookaheads: npt.ArrayLike | None = None,
    ) -> None:
        self.begins: Int32s = np.ascontiguousarray(begins, np.int32)
        self.codes: Int8s = np.ascontiguousarray(codes, np.int8)
        self.stages: Int32s = np.ascontiguousarray(stages, np.int32)
        self.microbatches: Int32s = np.ascontiguousarray(microbatches, np.int32)
        self.others: Int32s | None = None if others is None else np.ascontiguousarray(others, np.int32)
        self.lookaheads: Int32s | None = None if lookaheads is None else np.ascontiguousarray(lookaheads, np.int32)

    @classmethod
    def of(cls, lists: Iterable[Iterable[Op]]) -> OpColumns:
        """Return the columns of `lists`."""
        begins, cells = [0], GrowingCells()
        for row in lists:
            for op in row:
                cells.add(op)
            begins.append(len(cells.codes))
        others = cells.others if any(cells.others) or not _MESSAGES.isdisjoint(cells.codes) else None
        lookaheads = cells.lookaheads if any(cells.lookaheads) else None
        return cls(begins, cells.codes, cells.stages, cells.microbatches, others, lookaheads)

    @property
    def num_ranks(self) -> int:
        """The number of lists."""
        return len(self.begins) - 1

    @property
    def num_cells(self) -> int:
        """The number of cells."""
        return int(self.begins[-1])

    @property
    def has_messages(self) -> bool:
        """Whether a Send or Recv is in the lists."""
        return self.others is not None and any(self.counts[SEND_F:REDUCE])

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of cells of each code, including the parts of Overlaps."""
        counts = np.bincount(self.codes, minlength=2 * OVERLAPPED)
        return tuple((counts[:OVERLAPPED] + counts[OVERLAPPED:])[: RESHARD + 1].tolist())

    @property
    def num_overlaps(self) -> int:
        """Number of Overlaps."""
        return int((self.codes >= OVERLAPPED).sum())

    @property
    def splits_backward(self) -> bool:
        """Whether there is an I or W."""
        return any(self.counts[code] for code in (I, W))

    @property
    def recomputes(self) -> bool:
        """Whether there is an R."""
        return any(self.counts[code] for code in (R, LATE_R))

    @cached_property
    def num_computed_stages(self) -> int:
        """One more than the highest stage with a computation."""
        computed = (self.codes < SEND_F) | (self.codes >= OVERLAPPED)
        return 1 + int(np.max(self.stages, where=computed, initial=-1))

    def rank_of(self, cells: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rank of each cell of `cells`."""
        return np.searchsorted(self.begins, cells, side="right") - 1

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages with a computation on `rank`, in ascending order."""
        cells = slice(int(self.begins[rank]), int(self.begins[rank + 1]))
        codes, stages = self.codes[cells], self.stages[cells]
        is_there = np.zeros(1 + bounds(stages)[1], bool)
        is_there[stages[(codes < SEND_F) | (codes >= OVERLAPPED)]] = True
        return tuple(is_there.nonzero()[0].tolist())

    @property
    def num_computed_microbatches(self) -> int:
        """Number of micro-batches with a computation."""
        computed = (self.codes < SEND_F) | (self.codes >= OVERLAPPED)
        if bounds(self.microbatches)[1] > 4 * len(self.codes) + 1000:
            return len(np.unique(self.microbatches[computed]))
        is_there = np.zeros(1 + bounds(self.microbatches)[1], bool)
        is_there[self.microbatches[computed]] = True
        return int(is_there.sum())

    @property
    def kinds(self) -> Int8s:
        """The code of each op, rank by rank; for an Overlap the code of its second part."""
        return self.codes[self.codes < OVERLAPPED]

    @property
    def are_works(self) -> npt.NDArray[np.bool_]:
        """Whether each op, in the order of `kinds`, posts no message."""
        kinds = self.kinds
        return (kinds < SEND_F) | (kinds >= REDUCE)

    def are_within(self, num_stages: int, num_microbatches: int) -> bool:
        """Whether all stages and micro-batches are in range."""
        (first_stage, last_stage), (first, last) = bounds(self.stages), bounds(self.microbatches)
        return min(first_stage, first) >= 0 and last_stage < num_stages and last < max(1, num_microbatches)

    @cached_property
    def cells(self) -> Cells:
        """The columns for loops; missing columns are empty."""
        nothing = int32s(0)
        others, lookaheads = (nothing if column is None else column for column in (self.others, self.lookaheads))
        return Cells(self.begins, self.codes, self.stages, self.microbatches, others, lookaheads)

    @property
    def in_lists(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        """Begins, codes, stages, micro-batches and others as lists; others are zeros if missing."""
        others = [0] * self.num_cells if self.others is None else self.others.tolist()
        return (self.begins.tolist(), self.codes.tolist(), self.stages.tolist(), self.microbatches.tolist(), others)

    def with_cells(
        self, num_added: Sequence[int], places: npt.ArrayLike, cells: Sequence[npt.ArrayLike | None]
    ) -> OpColumns:
        """Return columns with k more cells.

        Args:
            num_added: Number of new cells of each rank.
            places: k ascending indices of cells: each new cell comes before the cell at its index. At the end of a
                rank's list this is the index of the next rank's first cell, or the number of cells.
            cells: Columns of the k cells: codes, stages, micro-batches, others and look-aheads; the latter two are
                ignored if `self` lacks them.
        """
        at = np.asarray(places, np.int64)
        columns = (self.codes, self.stages, self.microbatches, self.others, self.lookaheads)
        inserted: list[Any] = [
            None if column is None else np.insert(column, at, np.asarray(more, column.dtype))
            for column, more in zip(columns, cells, strict=True)
        ]
        return OpColumns(self.begins + np.cumsum([0, *num_added], dtype=np.int32), *inserted)

    def repeated(self, times: int, num_microbatches: int) -> OpColumns:
        """Return the columns of a batch that runs `times` times, as `pipesched.schedules.repeat` lists its ops."""
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        for begin, end in pairwise(self.begins.tolist()):
            stages = self.stages[begin:end]
            num_steps = np.bincount(stages[self.codes[begin:end] == STEP], minlength=1 + bounds(stages)[1])[stages]
            batches = np.repeat(np.arange(times), end - begin)
            parts.append((np.tile(np.arange(begin, end), times), batches, batches * np.tile(num_steps, times)))
        cells, batches, steps = map(np.concatenate, zip(*parts, strict=True))
        kinds = self.codes[cells] % OVERLAPPED
        return OpColumns(
            self.begins * times,
            self.codes[cells],
            self.stages[cells],
            self.microbatches[cells] + np.where(kinds < REDUCE, batches * num_microbatches, 0),
            (0 if self.others is None else self.others[cells]) + np.where(kinds < SEND_F, steps, 0),
            None if self.lookaheads is None else self.lookaheads[cells],
        )

    def rows(self) -> OpRows:
        """Return the list of each rank."""
        return OpRows(self)

    def ops(self, rank: int) -> Iterator[Op]:
        """Yield new objects of the ops of `rank`."""
        cells = slice(int(self.begins[rank]), int(self.begins[rank + 1]))
        first: Compute | None = None
        columns = self.codes, self.stages, self.microbatches, self.others, self.lookaheads
        for code, *numbers in zip(*(_listed(column, cells) for column in columns), strict=True):
            op = op_of_cell(code % OVERLAPPED, *numbers)
            if isinstance(op, Compute) and code >= OVERLAPPED:
                first = op
            elif isinstance(op, Compute) and first is not None:
                yield Overlap(first, op)
                first = None
            else:
                yield op

    def op_at(self, cell: int) -> Op:
        """Return a new object of the op that begins with a cell."""
        columns = self.stages, self.microbatches, self.others, self.lookaheads
        code = int(self.codes[cell])
        op = op_of_cell(code % OVERLAPPED, *(0 if column is None else int(column[cell]) for column in columns))
        behind = self.op_at(cell + 1) if code >= OVERLAPPED else None
        if isinstance(op, Compute) and isinstance(behind, Compute):
            return Overlap(op, behind)
        return op


def columns_of(lists: Sequence[Iterable[Op]]) -> OpColumns | None:
    """Return the OpColumns whose rows are exactly `lists`, in order, or None."""
    if isinstance(lists, OpRows):
        return lists.columns
    columns = lists[0].columns if lists and isinstance(lists[0], OpRow) else None
    if columns is None or columns.num_ranks != len(lists):
        return None
    are_rows = (isinstance(row, OpRow) and (row.columns, row.rank) == (columns, rank) for rank, row in enumerate(lists))
    return columns if all(are_rows) else None


def shows_messages(lists: Iterable[Iterable[Op]]) -> bool:
    """Return whether a Send or Recv is in the lists."""
    columns = columns_of(lists if isinstance(lists, OpRows) else (lists := tuple(lists)))
    return not all(_POSTS.isdisjoint(map(type, row)) for row in lists) if columns is None else columns.has_messages


@final
class OpRows(tuple["OpRow", ...]):
    """The lists of all ranks in columns.

    Attributes:
        columns: The columns.
    """

    columns: OpColumns

    def __new__(cls, columns: OpColumns) -> OpRows:
        """Return the rows of some columns."""
        rows = super().__new__(cls, [OpRow(columns, rank) for rank in range(columns.num_ranks)])
        rows.columns = columns
        return rows

    def __getnewargs__(self) -> tuple[OpColumns]:
        return (self.columns,)


@final
class OpRow(Sequence[Op]):
    """The list of one rank in columns: a sequence of ops that are made when they are first read.

    Args:
        columns: The columns of all ranks.
        rank: Rank of the list.
    """

    __slots__ = ("_ops", "columns", "rank")

    def __init__(self, columns: OpColumns, rank: int) -> None:
        self.columns = columns
        self.rank = rank
        self._ops: tuple[Op, ...] | None = None

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops as a tuple."""
        if self._ops is None:
            self._ops = tuple(self.columns.ops(self.rank))
        return self._ops

    @overload
    def __getitem__(self, index: int) -> Op: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Op, ...]: ...

    def __getitem__(self, index: int | slice) -> Op | tuple[Op, ...]:
        return self.ops[index]

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __len__(self) -> int:
        columns = self.columns
        begin, end = int(columns.begins[self.rank]), int(columns.begins[self.rank + 1])
        return end - begin - int((columns.codes[begin:end] >= OVERLAPPED).sum())

    def __eq__(self, other: object) -> bool:
        return self.ops == (other.ops if isinstance(other, OpRow) else other)

    def __hash__(self) -> int:
        return hash(self.ops)

    def __repr__(self) -> str:
        return repr(self.ops)


def _listed(numbers: npt.NDArray[Any] | None, cells: slice) -> list[int]:
    """Return some cells of a column as a list of ints, or zeros without the column."""
    return [0] * (cells.stop - cells.start) if numbers is None else numbers[cells].tolist()
