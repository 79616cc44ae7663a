"""A schedule as a program: the instructions of all ranks, and their meetings; compiled once, for any costs.

    rank 0   F0  Send  B0             WORK 0  SEND t0  WAIT t1  WORK 1  END      t0, t1: transfers of channels 0>1, 1>0
    rank 1   Recv  F0  B0  Send       RECV t0  WAIT t0  WORK 2  WORK 3  SEND t1  END      0..3: indices into durations

The instructions follow from the lists, and from whether Sends block and hand-over takes time. Their durations depend
on costs and cluster (`simulator.fast.loaded_program`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesched.profiles.clusters import Hop
from pipesched.schedules import HandOver, Schedule, Timeline
from pipesched.schedules.columns import SpanColumns, machine_code, op_cells, spread
from pipesched.schedules.ops import Group, Message, WorkOp
from pipesched.schedules.semantics import Channel
from pipesched.simulator import HandOverWork
from pipesched.simulator.fast.loop_arrays import extent_s


class WorkTime(NamedTuple):
    """A piece of an op on a device; a Step may copy the weights first."""

    device: int
    op: WorkOp
    copies: bool = False
    piece: int = 0


class LatencyTime(NamedTuple):
    """The latency of a link."""

    hop: Hop


class Gather(NamedTuple):
    """The gather of the weights of a stage by an Unshard of a rank: a reduction of the rank alone."""

    stage: int
    rank: int


InstructionTime: TypeAlias = WorkTime | HandOverWork | LatencyTime | float
"""The duration of an instruction; a number is in seconds."""


class SpanNumbers(NamedTuple):
    """Arrival, start and end of each op: times, or their numbers."""

    posted: npt.NDArray[Any]
    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]


class OwnWork(NamedTuple):
    """The instructions for a rank's own work, in order: their numbers, and the first cell of the op of each."""

    instructions: npt.NDArray[Any]
    cells: npt.NDArray[Any]


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
        reductions: Group of each reduction, or its gather.
        find_spans: Converts all times by number into the times of the spans of all ops, in order of rank and list. It
            also converts numbers of times (`time_numbers`) into the numbers of the spans. Of n instructions, time k is
            the arrival at number k; time n + t is the start of transfer or reduction t; the ends follow.
        own_work: The instructions for the time of hand-over; None without.
    """

    schedule: Schedule
    begins: machine_code.Int32s
    kinds: machine_code.Int8s
    targets: machine_code.Int32s
    takes: machine_code.Int32s
    durations: tuple[InstructionTime, ...]
    channels: tuple[Channel, ...]
    channel_of: machine_code.Int32s
    following: machine_code.Int32s
    messages: tuple[Message, ...]
    sizes: machine_code.Int32s
    reductions: list[Group | Gather]
    find_spans: Callable[[Any], SpanNumbers]
    own_work: OwnWork | None = None

    @property
    def num_times(self) -> int:
        """Number of times: one for each instruction, two for each transfer and reduction."""
        return len(self.kinds) + 2 * (len(self.following) + len(self.reductions))

    @property
    def time_numbers(self) -> machine_code.Int32s:
        """All numbers of times."""
        return np.arange(self.num_times, dtype=np.int32)

    @cached_property
    def spans(self) -> SpanNumbers:
        """The numbers of times of the spans, found when they are first asked for."""
        return self.find_spans(self.time_numbers)

    @cached_property
    def loads(self) -> tuple[machine_code.Int32s, list[tuple[int, int]]]:
        """The load of each transfer as a number, and the channel and size of each load."""
        num_sizes = max(1, len(self.messages))
        keys = self.channel_of * np.int64(num_sizes) + self.sizes
        is_there = np.zeros(len(self.channels) * num_sizes, np.bool_)
        is_there[keys] = True
        load_of: machine_code.Int32s = (np.cumsum(is_there, dtype=np.int32) - 1)[keys]
        return load_of, [divmod(key, num_sizes) for key in np.flatnonzero(is_there).tolist()]

    @cached_property
    def works(self) -> tuple[machine_code.Int32s, machine_code.Int32s]:
        """Start and end of all ops but messages, as indices of times."""
        return self._where(self.schedule.columns.are_works)

    @cached_property
    def works_of_one(self) -> tuple[machine_code.Int32s, machine_code.Int32s]:
        """Start and end of all ops but messages and Averages; a pipeline that is alone has no Averages."""
        if not self.schedule.averagers:
            return self.works
        return self._where(self.schedule.columns.are_works & (self.schedule.columns.kinds != op_cells.AVERAGE))

    def _where(self, is_meant: npt.NDArray[np.bool_]) -> tuple[machine_code.Int32s, machine_code.Int32s]:
        """Return start and end of the selected ops, as numbers of times."""
        return self.spans.starts[is_meant], self.spans.ends[is_meant]

    def makespan_s(self, times_s: machine_code.Float64s) -> float:
        """Return the makespan of the Timeline that has these times [s]."""
        first_s, last_s = extent_s(times_s, *self.works)
        return last_s - first_s

    def timeline(self, times: npt.NDArray[Any]) -> Timeline:
        """Return the Timeline that has these times, by number."""
        schedule = self.schedule
        columns = schedule.columns
        posted_s, starts_s, ends_s = (spread(columns.codes, column) for column in self.find_spans(times))
        spans = SpanColumns(columns, posted_s, starts_s, ends_s)
        hand_overs = tuple(self._hand_overs(times))
        return Timeline(schedule.name, "predicted", spans, schedule.rank_to_device, hand_overs=hand_overs)

    def _hand_overs(self, times: npt.NDArray[Any]) -> Iterator[HandOver]:
        """Yield the hand-over works that take time."""
        if self.own_work is None:
            return
        columns, instructions = self.schedule.columns, self.own_work.instructions
        takes_time = times[instructions + 1] > times[instructions]
        cells, numbers = self.own_work.cells[takes_time], instructions[takes_time]
        columns_of_works = columns.rank_of(cells), cells, times[numbers], times[numbers + 1]
        for rank, cell, start_s, end_s in zip(*(column.tolist() for column in columns_of_works), strict=True):
            yield HandOver(rank, columns.op_at(cell), start_s, end_s)
