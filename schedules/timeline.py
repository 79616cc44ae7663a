"""A timeline: op lists with times, whether predicted or measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Annotated, Literal

from annotated_types import Gt, Le

from pipesched.schedules.columns import SpanColumns
from pipesched.schedules.common import Count
from pipesched.schedules.ops import Compute, Op, Overlap, Recv, Reduce, Send, occupies_device
from pipesched.schedules.span import Span


@dataclass(frozen=True, slots=True)
class HandOver:
    """A rank's own time between works: to post a message, to take an arrived message, or to continue after an op.

    Attributes:
        op: The posted Send or Recv, the op that takes the message, or the op that has ended.
        start_s: Start of the hand-over [s].
        end_s: End of the hand-over, when the rank continues [s].
    """

    rank: int
    op: Op
    start_s: float
    end_s: float

    @classmethod
    def between(cls, spans: Sequence[Span]) -> Iterator[HandOver]:
        """Yield a rank's hand-overs: the post of each message, and the time from the end of a work to the next op.

        The time to take a message cannot be separated from the wait for the message.

        Args:
            spans: Spans of one rank, in the order of its list, with the time when each op was reached.
        """
        for span, following in pairwise(spans):
            start_s = span.end_s if occupies_device(span.op) else span.posted_s
            if start_s < following.posted_s and not isinstance(span.op, Reduce):
                yield cls(span.rank, span.op, start_s, following.posted_s)


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Bytes that `device` holds from `time_s` on, `kind` by kind (``weights``, ``activations``, ...)."""

    device: int
    time_s: float
    bytes_by_kind: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """Sum over the kinds."""
        return sum(num_bytes for _, num_bytes in self.bytes_by_kind)


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Speed of a machine around a measurement: the time of a fixed kernel just before and just after it.

    Attributes:
        device: Kind of device that ran the kernel, ``cpu`` or ``cuda``; each kind has its own kernel.
        num_busy: Number of cores that ran the kernel at once: the number in use during the measurement; 1 for GPUs.
        kernel_s: Mean time of the kernel [s].
    """

    device: Literal["cpu", "cuda"]
    num_busy: Count
    kernel_s: Annotated[float, Gt(0), Le(1e12)]

    @classmethod
    def mean(cls, yardsticks: Iterable[Yardstick | None]) -> Yardstick | None:
        """Return the mean of several yardsticks; None if one is unknown, or is of another kind of device."""
        several = list(yardsticks)
        known = [yardstick for yardstick in several if yardstick is not None]
        if len(known) < len(several) or len({yardstick.device for yardstick in known}) != 1:
            return None
        return replace(known[0], kernel_s=sum(yardstick.kernel_s for yardstick in known) / len(known))


@dataclass(frozen=True)
class Timeline:
    """Every span of a run, in the same form whether it was simulated or measured.

    Results of frequent queries are cached on first use; spans in columns become objects when they are read.

    Attributes:
        name: The schedule's name.
        source: Source of the times: ``"predicted"``, ``"measured"``, or another word that labels it in a
            figure. Only a measured Timeline gives costs, and `compare` gives an error only if one of the two Timelines
            is predicted and the other measured.
        spans: The spans, in order of rank, then of the rank's list.
        rank_to_device: The device of every rank.
        memory: Samples in order of device, then time; empty if memory was not recorded. If two samples have the same
            time, the first is the peak during an op, and the second is the memory after it.
        hand_overs: The hand-overs, in order of rank, then of the rank's list; empty if hand-over takes no time, or was
            not recorded.
        yardstick: Speed of the machine around the measurement of the times; for a prediction, around the measurement
            of its costs; None if unknown.
        launch_s: Time in which one host thread launched the ops of all ranks [s]; None if each rank has a process,
            or in a prediction.
    """

    name: str
    source: str
    spans: Sequence[Span]
    rank_to_device: tuple[int, ...]
    memory: tuple[MemorySample, ...] = ()
    hand_overs: tuple[HandOver, ...] = ()
    yardstick: Yardstick | None = None
    launch_s: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the times come from a run, not from a model."""
        return self.source == "measured"

    @property
    def is_predicted(self) -> bool:
        """Whether the times come from a model."""
        return self.source == "predicted"

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices in use, in ascending order."""
        return tuple(sorted(set(self.rank_to_device)))

    @cached_property
    def columns(self) -> SpanColumns:
        """The spans as columns of numbers: their original columns, or converted once."""
        return (
            self.spans if isinstance(self.spans, SpanColumns) else SpanColumns.of(self.spans, len(self.rank_to_device))
        )

    @cached_property
    def work(self) -> tuple[Span, ...]:
        """The spans that keep a device busy (`Span.is_work`)."""
        return tuple(span for span in self.spans if span.is_work)

    @cached_property
    def num_stages(self) -> int:
        """One more than the highest stage with a computation, even if the computation takes no time."""
        return self.columns.ops.num_computed_stages

    @cached_property
    def without_messages(self) -> tuple[Span, ...]:
        """The spans of all ops but Send and Recv: Reduces, and work, even if it takes no time."""
        return tuple(span for span in self.spans if not isinstance(span.op, Send | Recv))

    @cached_property
    def start_s(self) -> float:
        """Start of the first work or Reduce [s]."""
        return self.columns.extent_s[0]

    @cached_property
    def makespan_s(self) -> float:
        """Time from the first start to the last end of all work and Reduces [s]."""
        first_s, last_s = self.columns.extent_s
        return last_s - first_s

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether a run on GPUs is bound by its one launching thread.

        This is the case if the GPUs end less than half a median op after the thread has launched all ops. A thread
        that waits for a full queue also launches until shortly before the end, but then the GPU is several ops
        behind.
        """
        if self.launch_s is None or self.is_on_cpu:
            return False
        ops_s = [span.end_s - span.start_s for span in self.spans if isinstance(span.op, Compute | Overlap)]
        return bool(ops_s) and self.makespan_s - self.launch_s < 0.5 * median(ops_s)

    @property
    def is_on_cpu(self) -> bool:
        """Whether the times are known to come from a CPU, where launching an op runs it."""
        return self.yardstick is not None and self.yardstick.device == "cpu"

    def of_rank(self, rank: int) -> tuple[Span, ...]:
        """Return the spans of one rank, in its list's order."""
        return self._by_rank.get(rank, ())

    def work_of_device(self, device: int) -> tuple[Span, ...]:
        """Return the spans that keep one device busy, in order of their start."""
        return self._work_by_device.get(device, ())

    @cached_property
    def _work_by_device(self) -> dict[int, tuple[Span, ...]]:
        work_of: dict[int, list[Span]] = {}
        for span in sorted(self.work, key=lambda span: span.start_s):
            work_of.setdefault(self.rank_to_device[span.rank], []).append(span)
        return {device: tuple(spans) for device, spans in work_of.items()}

    @cached_property
    def _by_rank(self) -> dict[int, tuple[Span, ...]]:
        spans_of: dict[int, list[Span]] = {}
        for span in self.spans:
            spans_of.setdefault(span.rank, []).append(span)
        return {rank: tuple(spans) for rank, spans in spans_of.items()}

    def from_zero(self) -> Timeline:
        """Return the same timeline with its first work at 0 s."""
        zero = self.start_s
        spans = tuple(
            replace(s, posted_s=s.posted_s - zero, start_s=s.start_s - zero, end_s=s.end_s - zero) for s in self.spans
        )
        memory = tuple(replace(sample, time_s=sample.time_s - zero) for sample in self.memory)
        hand_overs = tuple(replace(h, start_s=h.start_s - zero, end_s=h.end_s - zero) for h in self.hand_overs)
        return replace(self, spans=spans, memory=memory, hand_overs=hand_overs)
