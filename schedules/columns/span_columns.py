"""The spans of a Timeline as columns: the cells of its ops, and three times for each cell.

    op          0F0     (1F1;1B0)OVERLAP_F_B   0STEP       of one rank
    cell         0        1     2                3
    posted_s    0.0      1.0   1.0              4.0        both cells of an Overlap have its times
    starts_s    0.0      2.0   2.0              4.0
    ends_s      1.0      4.0   4.0              4.0

Spans become objects on first access, and are then kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, compress, groupby, repeat
from math import fsum
from operator import attrgetter
from typing import Any, final, overload

import numpy as np
import numpy.typing as npt

from pipesched.schedules import ScheduleError, Span
from pipesched.schedules.columns.machine_code import Float64s, Int8s, Int64s
from pipesched.schedules.columns.op_cells import OVERLAPPED, REDUCE, SEND_F, UNSHARD
from pipesched.schedules.columns.op_columns import OpColumns
from pipesched.schedules.common import room_bytes
from pipesched.schedules.ops import Op, Overlap

_FEW, _SPAN_BYTES = 1_000_000, 300
"""Ops that fit into any memory, and the memory of a span with its op, as objects [bytes]."""


@final
class SpanColumns(Sequence[Span]):
    """The spans of all ranks, in order of rank, then of the rank's list: a sequence of them, and columns of n cells.

    Args:
        ops: The ops.
        posted_s: Time at which the rank reached the op, for each of n cells [s].
        starts_s: Start of the op, for each cell [s].
        ends_s: End of the op, for each cell [s].
        rows: The ops of each rank as objects, if they exist already.
    """

    def __init__(
        self, ops: OpColumns, posted_s: npt.ArrayLike, starts_s: npt.ArrayLike, ends_s: npt.ArrayLike,
        rows: Sequence[Sequence[Op]] | None = None,
    ) -> None:  # fmt: skip
        self.ops = ops
        self._rows = rows
        self.posted_s: Float64s = np.ascontiguousarray(posted_s, np.float64)
        self.starts_s: Float64s = np.ascontiguousarray(starts_s, np.float64)
        self.ends_s: Float64s = np.ascontiguousarray(ends_s, np.float64)

    @classmethod
    def of(cls, spans: Iterable[Span], num_ranks: int) -> SpanColumns:
        """Return the columns of `spans` of `num_ranks` ranks, in order of rank."""
        spans = sorted(spans, key=attrgetter("rank"))
        rows = {rank: [span.op for span in its] for rank, its in groupby(spans, attrgetter("rank"))}
        times_s: list[tuple[float, float, float]] = []
        for span in spans:
            count = 2 if isinstance(span.op, Overlap) else 1
            times_s += [(span.posted_s, span.start_s, span.end_s)] * count
        last = max([num_ranks - 1, *rows])
        posted_s, starts_s, ends_s = np.array(times_s, np.float64).reshape(-1, 3).T
        return cls(OpColumns.of(rows.get(rank, ()) for rank in range(last + 1)), posted_s, starts_s, ends_s)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The spans as objects.

        Raises:
            ScheduleError: The spans do not fit into memory.
        """
        most = room_bytes() // _SPAN_BYTES if len(self.ops.codes) > _FEW else len(self.ops.codes)
        if len(self.ops.codes) > most:
            raise ScheduleError(
                f"timeline: got {len(self.ops.codes)} ops, expected at most {most}, for which there is memory; try "
                "fewer micro-batches"
            )
        codes, rows = self.ops.codes.tolist(), self._rows or [row.ops for row in self.ops.rows()]
        ranks = chain.from_iterable(repeat(rank, len(row)) for rank, row in enumerate(rows))
        is_first = [True, *(code < OVERLAPPED for code in codes)]
        columns = (compress(column.tolist(), is_first) for column in (self.posted_s, self.starts_s, self.ends_s))
        return tuple(map(Span, ranks, chain.from_iterable(rows), *columns))

    def of_rank(self, rank: int) -> tuple[Span, ...]:
        """Return the spans of one rank as new objects."""
        cells = slice(int(self.ops.begins[rank]), int(self.ops.begins[rank + 1]))
        is_first = [True, *(code < OVERLAPPED for code in self.ops.codes[cells].tolist())]
        columns = (compress(column[cells].tolist(), is_first) for column in (self.posted_s, self.starts_s, self.ends_s))
        return tuple(map(Span, repeat(rank), self._rows[rank] if self._rows else self.ops.ops(rank), *columns))

    @property
    def begin_s(self) -> float:
        """Earliest time at which a rank reached an op [s]; 0 without ops."""
        return float(self.posted_s.min()) if len(self.posted_s) else 0.0

    @cached_property
    def extent_s(self) -> tuple[float, float]:
        """Start of the first and end of the last op other than messages [s]; zeros without such ops."""
        codes = self.ops.codes
        works = (codes < SEND_F) | (codes >= REDUCE)
        if not works.any():
            return 0.0, 0.0
        first_s = np.min(self.starts_s, where=works, initial=np.inf)
        return float(first_s), float(np.max(self.ends_s, where=works, initial=-np.inf))

    def busy_cells(self, rank: int) -> Int64s:
        """Return the cells of a rank's ops that keep its device busy (`Span.is_work`); the first cell of an Overlap."""
        begin, end = int(self.ops.begins[rank]), int(self.ops.begins[rank + 1])
        codes, starts_s, ends_s = self.ops.codes, self.starts_s, self.ends_s
        own = codes[begin:end]
        is_busy = (ends_s[begin:end] > starts_s[begin:end]) & ((own < SEND_F) | (own > UNSHARD))
        is_busy[1:] &= own[:-1] < OVERLAPPED
        return np.flatnonzero(is_busy) + begin

    def work_extent_s(self, rank: int) -> tuple[float, float] | None:
        """Return the start of the first and the end of the last work of a rank [s]; None without work."""
        cells = self.busy_cells(rank)
        if not len(cells):
            return None
        return float(self.starts_s[cells].min()), float(self.ends_s[cells].max())

    def worked_s(self, rank: int) -> float:
        """Return the total time of the work of a rank [s]."""
        cells = self.busy_cells(rank)
        return fsum((self.ends_s[cells] - self.starts_s[cells]).tolist())

    @overload
    def __getitem__(self, index: int) -> Span: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Span, ...]: ...

    def __getitem__(self, index: int | slice) -> Span | tuple[Span, ...]:
        return self.spans[index]

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        return sum(map(len, self.ops.rows()))

    def __eq__(self, other: object) -> bool:
        return self.spans == (other.spans if isinstance(other, SpanColumns) else other)

    def __hash__(self) -> int:
        return hash(self.spans)

    def __repr__(self) -> str:
        return repr(self.spans)


def spread(codes: Int8s, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the number of each cell's op, given one number for each op; both cells of an Overlap have the same."""
    if len(codes) == len(numbers):
        return numbers
    ops: Int64s = np.cumsum(np.append(True, codes[:-1] < OVERLAPPED)) - 1
    spread_numbers: npt.NDArray[Any] = numbers[ops]
    return spread_numbers
