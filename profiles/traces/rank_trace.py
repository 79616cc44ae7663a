"""The trace of one rank, reduced to the needed parts of a large file, in whole nanoseconds of the rank's clock."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pipesched.profiles.traces.range_patterns import PassName
from pipesched.schedules.ops import Compute, Op, computes

if TYPE_CHECKING:
    import numpy as np


class Interval(NamedTuple):
    """An interval of time [ns]."""

    start_ns: int
    end_ns: int

    def overlap_ns(self, other: Interval) -> int:
        """Return the length of the overlap [ns]."""
        return max(0, min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns))


@dataclass(frozen=True, slots=True)
class NamedRange:
    """A range on the host with a known meaning.

    Attributes:
        name: Name of the range.
        meaning: The pass in the name, or an op.
        time: Start and end of the range.
    """

    name: str
    meaning: PassName | Op
    time: Interval

    @property
    def passes(self) -> Sequence[PassName | Compute]:
        """The pass of the range, or the two passes of an Overlap; empty for other ops."""
        return [self.meaning] if isinstance(self.meaning, PassName) else computes(self.meaning)


def _integers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class IntervalColumns:
    """Many intervals, in 16 bytes each."""

    starts_ns: array[int] = field(default_factory=_integers)
    ends_ns: array[int] = field(default_factory=_integers)

    def add(self, time: Interval) -> None:
        """Add one interval, in any order."""
        self.starts_ns.append(time.start_ns)
        self.ends_ns.append(time.end_ns)

    def extend(self, other: IntervalColumns) -> None:
        """Add all intervals of another `IntervalColumns`."""
        self.starts_ns.extend(other.starts_ns)
        self.ends_ns.extend(other.ends_ns)

    def __len__(self) -> int:
        return len(self.starts_ns)

    def within(self, window: Interval) -> Iterator[Interval]:
        """Yield the intervals that start in `window`, in order of time."""
        inside = [
            Interval(start, end)
            for start, end in zip(self.starts_ns, self.ends_ns, strict=True)
            if window.start_ns <= start < window.end_ns
        ]
        yield from sorted(inside)


@dataclass
class KernelTimes:
    """The kernels and copies of a GPU, and the calls on the host that launched them, matched by correlation ids."""

    launch_ids: array[int] = field(default_factory=_integers)
    launches_ns: array[int] = field(default_factory=_integers)
    ids: array[int] = field(default_factory=_integers)
    times: IntervalColumns = field(default_factory=IntervalColumns)
    are_messages: array[int] = field(default_factory=lambda: array("b"))

    def extend(self, other: KernelTimes) -> None:
        """Add the kernels and launches of another `KernelTimes`."""
        for name in ("launch_ids", "launches_ns", "ids", "are_messages"):
            getattr(self, name).extend(getattr(other, name))
        self.times.extend(other.times)

    def launched(self, time: Interval, *, messages: bool = False) -> Interval | None:
        """Return the time from first start to last end of the kernels launched in `time`, or None without a kernel.

        Args:
            time: Time of a range on the host.
            messages: Whether only the kernels of messages between ranks count, or only all other kernels.
        """
        launches, starts, ends, are_messages = self._by_launch
        first, last = launches.searchsorted([time.start_ns, time.end_ns])
        is_meant = are_messages[first:last] == messages
        if not is_meant.any():
            return None
        return Interval(int(starts[first:last][is_meant].min()), int(ends[first:last][is_meant].max()))

    @cached_property
    def _by_launch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Columns of the kernels, in order of launch: launch time, start, end [ns], and whether one moves a message."""
        import numpy as np

        launch_ids, ids = np.asarray(self.launch_ids), np.asarray(self.ids)
        order = launch_ids.argsort(kind="stable")
        places = launch_ids[order].searchsorted(ids).clip(0, max(0, len(order) - 1))
        is_known = launch_ids[order][places] == ids if len(order) else np.zeros(len(ids), bool)
        launches = np.asarray(self.launches_ns)[order][places[is_known]]
        columns = (self.times.starts_ns, self.times.ends_ns, self.are_messages)
        starts, ends, are_messages = (np.asarray(column)[is_known] for column in columns)
        by_launch = launches.argsort(kind="stable")
        return launches[by_launch], starts[by_launch], ends[by_launch], are_messages[by_launch].astype(bool)


_INTERVALS = (
    "send_posts", "send_waits", "recv_posts", "recv_waits", "optimizer_steps", "forward_ops", "backward_ops",
)  # fmt: skip
"""The columns of intervals of a `RankTrace`."""


@dataclass
class RankTrace:
    """The trace of one rank: names and times with a known meaning.

    Attributes:
        file: File of the trace, with the rank in a merged file.
        rank: Rank in the whole job, or None if unknown.
        host: Name of the rank's machine, or None if unknown.
        base_ns: Zero of all times [ns since 1970].
        groups: The process groups of the rank by name, each with its ranks.
        family: The runtime that named the ranges, or None with a user's patterns.
        num_slices: Number of all slices.
        ranges: The ranges whose names have a known meaning.
        other_names: Counts of other names.
        steps: The steps of the profiler, by number.
        send_posts: Calls that posted a send, over gloo.
        send_waits: Times from the post of a send to the end of its wait, over gloo.
        recv_posts: Calls that posted a receive, over gloo.
        recv_waits: Times from the post of a receive to the end of its wait, over gloo.
        kernels: Kernels of a GPU; empty without one.
        optimizer_steps: Steps of any optimizer of torch.optim.
        forward_ops: Ops of forward passes that may have a backward.
        backward_ops: Functions that autograd's engine evaluated.
        flow_starts_ns: Start of each arrow from a forward op to its backward, by the id of the arrow.
        flow_ends_ns: End of each arrow, in the backward, by the id of the arrow.
    """

    file: str
    rank: int | None = None
    host: str | None = None
    base_ns: int = 0
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    family: str | None = None
    num_slices: int = 0
    ranges: list[NamedRange] = field(default_factory=list)
    other_names: Counter[str] = field(default_factory=Counter)
    steps: dict[int, Interval] = field(default_factory=dict)
    send_posts: IntervalColumns = field(default_factory=IntervalColumns)
    send_waits: IntervalColumns = field(default_factory=IntervalColumns)
    recv_posts: IntervalColumns = field(default_factory=IntervalColumns)
    recv_waits: IntervalColumns = field(default_factory=IntervalColumns)
    kernels: KernelTimes = field(default_factory=KernelTimes)
    optimizer_steps: IntervalColumns = field(default_factory=IntervalColumns)
    forward_ops: IntervalColumns = field(default_factory=IntervalColumns)
    backward_ops: IntervalColumns = field(default_factory=IntervalColumns)
    flow_starts_ns: dict[int, int] = field(default_factory=dict)
    flow_ends_ns: dict[int, int] = field(default_factory=dict)

    def absorb(self, other: RankTrace) -> None:
        """Add the contents of another lane of the same rank."""
        self.ranges += other.ranges
        self.other_names += other.other_names
        self.num_slices += other.num_slices
        for columns in ("steps", "flow_starts_ns", "flow_ends_ns"):
            getattr(self, columns).update(getattr(other, columns))
        for columns in _INTERVALS:
            getattr(self, columns).extend(getattr(other, columns))
        self.kernels.extend(other.kernels)

    @property
    def has_gpu(self) -> bool:
        """Whether the rank has kernels; their times then count in place of the ranges on the host."""
        return len(self.kernels.times) > 0
