"""Op lists as columns of numbers: all ranks one after the other, a cell for each computation, message or Step.

    rank 0   0F0  0B0  0STEP              rank 1   (1F1;1B0)OVERLAP_F_B  1RECV_F2

    cell            0    1    2             3                4    5
    codes           F    B    STEP          F + OVERLAPPED   B    RECV_F
    stages          0    0    0             1                1    0      of a message the stage that makes it
    microbatches    0    0    0             1                0    2      0 for words of a stage
    others          0    0    0             0                0    0      rank of the peer, or version of a computation
    begins          0                       3                     6

A builder calls ``make_schedule(name, num_stages, num_microbatches, OpColumns(begins, codes, stages, microbatches))``,
with lists, or with NumPy's arrays, which are used without a copy if they are of int32 (codes: int8). Ops are made on
first access, and then kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, final, overload

from pipesched.schedules.machine_code import bounds, converted
from pipesched.schedules.op import Compute, Op, Overlap
from pipesched.schedules.op_cells import OVERLAPPED, REDUCE, RESHARD, SEND_F, GrowingCells, I, W, op_of_cell

Numbers: TypeAlias = Any
"""A list of ints, or NumPy's array of them."""

_MESSAGES = frozenset(range(SEND_F, REDUCE))


class Cells(NamedTuple):
    """The columns of n cells of R ranks, for loops: all of them lists, or all of them NumPy's arrays.

    Attributes:
        begins: R + 1 indices: where the cells of each rank begin, and n.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        others: n peers and versions, or empty.
        lookaheads: n look-aheads, or empty.
    """

    begins: list[int]
    codes: list[int]
    stages: list[int]
    microbatches: list[int]
    others: list[int]
    lookaheads: list[int]


@final
class OpColumns:
    """The ops of all R ranks as columns; n cells in all.

    Args:
        begins: R + 1 indices: where the cells of each rank begin, and n.
        codes: n codes, as above.
        stages: n stages.
        microbatches: n micro-batches; 0 for words of a stage.
        others: n ranks of peers (messages) and versions (computations), or None without messages and with versions 0.
        lookaheads: n look-aheads of computations, or None for 0.
    """

    def __init__(
        self,
        begins: Numbers,
        codes: Numbers,
        stages: Numbers,
        microbatches: Numbers,
        others: Numbers | None = None,
        lookaheads: Numbers | None = None,
    ) -> None:
        self.begins = begins
        self.codes = codes
        self.stages = stages
        self.microbatches = microbatches
        self.others = others
        self.lookaheads = lookaheads

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
        if isinstance(self.codes, list):
            return tuple(self.codes.count(code) + self.codes.count(code + OVERLAPPED) for code in range(RESHARD + 1))
        import numpy as np

        counts = np.bincount(self.codes, minlength=2 * OVERLAPPED)
        return tuple((counts[:OVERLAPPED] + counts[OVERLAPPED:])[: RESHARD + 1].tolist())

    @property
    def splits_backward(self) -> bool:
        """Whether there is an I or W."""
        return any(self.counts[code] for code in (I, W))

    @cached_property
    def num_computed_stages(self) -> int:
        """One more than the highest stage that something is computed for."""
        if isinstance(self.codes, list):
            pairs = zip(self.codes, self.stages, strict=True)
            return 1 + max((stage for code, stage in pairs if code < SEND_F or code >= OVERLAPPED), default=-1)
        import numpy as np

        computed = (self.codes < SEND_F) | (self.codes >= OVERLAPPED)
        return 1 + int(np.max(self.stages, where=computed, initial=-1))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that something is computed for on `rank`, in ascending order."""
        cells = slice(int(self.begins[rank]), int(self.begins[rank + 1]))
        codes, stages = self.codes[cells], self.stages[cells]
        if isinstance(codes, list):
            pairs = zip(codes, stages, strict=True)
            return tuple(sorted({stage for code, stage in pairs if code < SEND_F or code >= OVERLAPPED}))
        import numpy as np

        is_there = np.zeros(1 + bounds(stages)[1], bool)
        is_there[stages[(codes < SEND_F) | (codes >= OVERLAPPED)]] = True
        return tuple(is_there.nonzero()[0].tolist())

    @property
    def num_computed_microbatches(self) -> int:
        """Number of micro-batches with a computation."""
        if isinstance(self.codes, list):
            pairs = zip(self.codes, self.microbatches, strict=True)
            return len({microbatch for code, microbatch in pairs if code < SEND_F or code >= OVERLAPPED})
        import numpy as np

        computed = (self.codes < SEND_F) | (self.codes >= OVERLAPPED)
        if bounds(self.microbatches)[1] > 4 * len(self.codes) + 1000:
            return len(np.unique(self.microbatches[computed]))
        is_there = np.zeros(1 + bounds(self.microbatches)[1], bool)
        is_there[self.microbatches[computed]] = True
        return int(is_there.sum())

    @property
    def kinds(self) -> Any:
        """The code of each op, rank by rank; of an Overlap the code of its second part."""
        if isinstance(self.codes, list):
            return [code for code in self.codes if code < OVERLAPPED]
        return self.codes[self.codes < OVERLAPPED]

    @property
    def are_works(self) -> Any:
        """Whether each op, in the order of `kinds`, posts no message."""
        kinds = self.kinds
        if isinstance(kinds, list):
            return [not SEND_F <= kind < REDUCE for kind in kinds]
        return (kinds < SEND_F) | (kinds >= REDUCE)

    def are_within(self, num_stages: int, num_microbatches: int) -> bool:
        """Whether all stages and micro-batches are in range."""
        (first_stage, last_stage), (first, last) = bounds(self.stages), bounds(self.microbatches)
        return min(first_stage, first) >= 0 and last_stage < num_stages and last < max(1, num_microbatches)

    def in_form(self, *, in_arrays: bool) -> Cells:
        """Return the columns as lists, or as NumPy's arrays: codes of int8, all others of int32."""
        columns = self.begins, self.codes, self.stages, self.microbatches, self.others, self.lookaheads
        return Cells(
            *(
                converted([] if column is None else column, in_arrays=in_arrays, are_small=column is self.codes)
                for column in columns
            )
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
        rank: Whose list this is.
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
        codes: Numbers = columns.codes[begin:end]
        if isinstance(codes, list):
            return end - begin - sum(1 for code in codes if code >= OVERLAPPED)
        return end - begin - int((codes >= OVERLAPPED).sum())

    def __eq__(self, other: object) -> bool:
        return self.ops == (other.ops if isinstance(other, OpRow) else other)

    def __hash__(self) -> int:
        return hash(self.ops)

    def __repr__(self) -> str:
        return repr(self.ops)


def _listed(numbers: Numbers | None, cells: slice) -> list[int]:
    """Return some cells of a column as a list of ints, or zeros without the column."""
    if numbers is None:
        return [0] * (cells.stop - cells.start)
    part: Any = numbers[cells]
    return part if isinstance(part, list) else [*part.tolist()]
