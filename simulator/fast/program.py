"""A schedule as a program: the instructions of all ranks, and their meetings; compiled once, for any costs.

    rank 0   F0  Send  B0             WORK 0  SEND t0  WAIT t1  WORK 1  END      t0, t1: transfers of channels 0>1, 1>0
    rank 1   Recv  F0  B0  Send       RECV t0  WAIT t0  WORK 2  WORK 3  SEND t1  END      0..3: indices into durations

The instructions follow from the lists, from whether Sends block and hand-over takes time, and from times given for
single ops. Their durations depend on costs and cluster (`simulator.fast.program_costs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress, repeat
from typing import Any, NamedTuple, TypeAlias

from pipesched.profiles.clusters import Hop
from pipesched.schedules import (
    HandOver,
    Message,
    Op,
    Schedule,
    SpanColumns,
    Timeline,
    WorkOp,
    machine_code,
    op_cells,
    spread,
)
from pipesched.schedules.semantics import Channel
from pipesched.simulator import HandOverWork
from pipesched.simulator.fast.loop_arrays import RECV, extent_s, in_lists

_LONG = "kinds", "targets", "takes", "channel_of", "following", "sizes"
"""Columns of a Program that are lists, or NumPy's arrays."""


class WorkTime(NamedTuple):
    """A piece of an op on a device; a Step may copy the weights first."""

    device: int
    op: WorkOp
    copies: bool = False
    piece: int = 0


class GivenTime(NamedTuple):
    """Seconds given for an op, in place of the model's seconds."""

    op: WorkOp | None
    seconds: float


class LatencyTime(NamedTuple):
    """The latency of a link."""

    hop: Hop


InstructionTime: TypeAlias = WorkTime | HandOverWork | GivenTime | LatencyTime | float
"""The duration of an instruction; a number is in seconds."""


class SpanNumbers(NamedTuple):
    """Arrival, start and end of each op: times, or their numbers.

    As lists, or as NumPy's arrays.
    """

    posted: Any
    starts: Any
    ends: Any


@dataclass(frozen=True, eq=False)  # without slots: the works are kept beside the fields
class Program:
    """The instructions of R ranks, one after the other, T transfers, and then the reductions.

    Attributes:
        schedule: The lowered lists.
        begins: R + 1 indices: where each rank's instructions begin, and the total number.
        kinds: Kinds of the instructions, in the numbering of the event loop.
        targets: The transfer or reduction that each posts or waits for; otherwise 0.
        takes: Index of each into `durations`.
        durations: Every different duration once; costs turn each into seconds.
        channels: Channels by number.
        channel_of: T numbers of channels.
        following: T transfers: the next of the same channel; -1 behind the last.
        messages: Every distinct message once, without its micro-batch.
        sizes: T indices into `messages`.
        reductions: Stage of each reduction.
        find_spans: Converts all times by number into the times of the spans of all ops, in order of rank and list. It
            also converts numbers of times (`time_numbers`) into the numbers of the spans. Of n instructions, time k is
            the arrival at number k; time n + t is the start of transfer or reduction t; the ends follow.
        has_hand_over: Whether there are instructions for the time of hand-over.
        hand_overs: Rank, op and instruction of each hand-over, in the order of the spans.
    """

    schedule: Schedule
    begins: list[int]
    kinds: list[int]
    targets: list[int]
    takes: list[int]
    durations: tuple[InstructionTime, ...]
    channels: tuple[Channel, ...]
    channel_of: list[int]
    following: list[int]
    messages: tuple[Message, ...]
    sizes: list[int]
    reductions: list[int]
    find_spans: Callable[[Any], SpanNumbers]
    has_hand_over: bool
    hand_overs: list[tuple[int, Op, int]]

    @property
    def num_times(self) -> int:
        """Number of times: one for each instruction, two for each transfer and reduction."""
        return len(self.kinds) + 2 * (len(self.following) + len(self.reductions))

    @property
    def time_numbers(self) -> Any:
        """All numbers of times, as a range or array like the instructions."""
        if isinstance(self.kinds, list):
            return range(self.num_times)
        import numpy as np

        return np.arange(self.num_times, dtype=np.int32)

    @cached_property
    def spans(self) -> SpanNumbers:
        """The numbers of times of the spans in lists, found when they are first asked for."""
        return SpanNumbers(*in_lists(self.find_spans(self.time_numbers)))

    @cached_property
    def in_lists(self) -> Program:
        """The program with long columns as lists, for plain Python."""
        if isinstance(self.kinds, list):
            return self
        columns: dict[str, Any] = {name: getattr(self, name).tolist() for name in _LONG}
        return replace(self, **columns)

    @cached_property
    def in_numpy(self) -> Program:
        """The program with long columns as NumPy's arrays, for machine code."""
        import numpy as np

        columns: dict[str, Any] = {name: np.asarray(getattr(self, name), np.int32) for name in _LONG[1:]}
        columns["kinds"] = np.asarray(self.kinds, np.int8)
        if all(columns[name] is getattr(self, name) for name in _LONG):
            return self
        return replace(self, **columns)

    @cached_property
    def loads(self) -> tuple[list[int], list[tuple[int, int]]]:
        """The load of each transfer as a number, and the channel and size of each load."""
        numbers: dict[tuple[int, int], int] = {}
        if isinstance(self.sizes, list):
            load_of = [numbers.setdefault(load, len(numbers)) for load in zip(self.channel_of, self.sizes, strict=True)]
            return load_of, list(numbers)
        import numpy as np

        num_sizes = max(1, len(self.messages))
        keys = self.channel_of * np.int64(num_sizes) + self.sizes
        is_there = np.zeros(len(self.channels) * num_sizes, np.bool_)
        is_there[keys] = True
        array_of: Any = (np.cumsum(is_there, dtype=np.int32) - 1)[keys]
        return array_of, [divmod(key, num_sizes) for key in is_there.nonzero()[0].tolist()]

    @cached_property
    def lates(self) -> list[float]:
        """Given delay of each transfer after its end on the network [s]; empty without delays."""
        late_s = [duration if isinstance(duration, float) else 0.0 for duration in self.durations]
        if not any(late_s):
            return []
        lates = [0.0] * len(self.following)
        for kind, target, takes in zip(*in_lists((self.kinds, self.targets, self.takes)), strict=True):
            if kind == RECV:
                lates[target] = late_s[takes]
        return lates

    @cached_property
    def works(self) -> tuple[Any, Any]:
        """Start and end of all ops but messages, as numbers of times; lists, or NumPy's arrays."""
        return self._where(self.schedule.columns.are_works)

    @cached_property
    def works_of_one(self) -> tuple[Any, Any]:
        """Start and end of all ops but messages and Averages; a pipeline that is alone has no Averages."""
        if not self.schedule.averagers:
            return self.works
        kinds, are_works = self.schedule.columns.kinds, self.schedule.columns.are_works
        if not isinstance(kinds, list):
            return self._where(are_works & (kinds != op_cells.AVERAGE))
        pairs = zip(kinds, are_works, strict=True)
        return self._where([is_work and kind != op_cells.AVERAGE for kind, is_work in pairs])

    def _where(self, is_meant: Any) -> tuple[Any, Any]:
        """Return start and end of the selected ops, as numbers of times."""
        _, starts, ends = self.find_spans(self.time_numbers)
        if isinstance(starts, list):
            return list(compress(starts, is_meant)), list(compress(ends, is_meant))
        return starts[is_meant], ends[is_meant]

    def makespan_s(self, times_s: Sequence[float]) -> float:
        """Return the makespan of the Timeline that has these times [s]."""
        first_s, last_s = extent_s(times_s, *self.works)
        return last_s - first_s

    def timeline(self, times: Sequence[float]) -> Timeline:
        """Return the Timeline that has these times, by number."""
        schedule = self.schedule
        spans = SpanColumns(schedule.columns, *self._cell_times(times))
        times = times if isinstance(times, Sequence) else times.tolist() if self.hand_overs else ()
        hand_overs = tuple(
            HandOver(rank, op, times[index], times[index + 1])
            for rank, op, index in self.hand_overs
            if times[index + 1] > times[index]
        )
        return Timeline(schedule.name, "predicted", spans, schedule.rank_to_device, hand_overs=hand_overs)

    def _cell_times(self, times: Any) -> Iterator[Any]:
        """Yield the arrival, start and end of the op of each cell, as lists or arrays like the columns' codes."""
        codes = self.schedule.columns.codes
        in_arrays = not isinstance(self.kinds, list)
        times = machine_code.converted(times, in_arrays=in_arrays, are_real=True)
        for column in self.find_spans(times):
            are_alike = in_arrays == (not isinstance(codes, list))
            yield spread(
                codes, column if are_alike else machine_code.converted(column, in_arrays=not in_arrays, are_real=True)
            )

    def ranks(self) -> Iterator[int]:
        """Yield the rank of each span."""
        return chain.from_iterable(repeat(rank, len(row)) for rank, row in enumerate(self.schedule.ops))
