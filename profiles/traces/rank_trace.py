"""The trace of one rank, as far as it is kept: a little of a large file, in whole nanoseconds of its own clock."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pipesched.profiles.traces.range_patterns import PassName
from pipesched.schedules import Op

if TYPE_CHECKING:
    import numpy as np


class Interval(NamedTuple):
    """A stretch of time [ns]."""

    start_ns: int
    end_ns: int

    def overlap_ns(self, other: Interval) -> int:
        """Return how long both last at once [ns]."""
        return max(0, min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns))


@dataclass(frozen=True, slots=True)
class NamedRange:
    """A range on the host whose name means something.

    Attributes:
        meaning: A pass as far as the name says it, or an op.
    """

    name: str
    meaning: PassName | Op
    time: Interval


def _integers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class IntervalColumns:
    """Many intervals, in 16 bytes each."""

    starts_ns: array[int] = field(default_factory=_integers)
    ends_ns: array[int] = field(default_factory=_integers)

    def add(self, time: Interval) -> None:
        """Add one; in any order."""
        self.starts_ns.append(time.start_ns)
        self.ends_ns.append(time.end_ns)

    def extend(self, other: IntervalColumns) -> None:
        """Add all intervals of another."""
        self.starts_ns.extend(other.starts_ns)
        self.ends_ns.extend(other.ends_ns)

    def __len__(self) -> int:
        return len(self.starts_ns)

    def within(self, window: Interval) -> Iterator[Interval]:
        """Yield those that start in `window`, in order of time."""
        inside = [
            Interval(start, end)
            for start, end in zip(self.starts_ns, self.ends_ns, strict=True)
            if window.start_ns <= start < window.end_ns
        ]
        yield from sorted(inside)


@dataclass
class KernelTimes:
    """The kernels and copies of a GPU, and the calls on the host that launched them; a correlation id tells which."""

    launch_ids: array[int] = field(default_factory=_integers)
    launches_ns: array[int] = field(default_factory=_integers)
    ids: array[int] = field(default_factory=_integers)
    times: IntervalColumns = field(default_factory=IntervalColumns)
    are_messages: array[int] = field(default_factory=lambda: array("b"))

    def extend(self, other: KernelTimes) -> None:
        """Add the kernels and launches of another."""
        for name in ("launch_ids", "launches_ns", "ids", "are_messages"):
            getattr(self, name).extend(getattr(other, name))
        self.times.extend(other.times)

    def launched(self, time: Interval, *, messages: bool = False) -> Interval | None:
        """Return from the first start to the last end of what was launched in `time`, by any thread; None: nothing was.

        Args:
            time: Time of a range on the host.
            messages: Look at the kernels of messages between ranks alone; else at all others.
        """
        launches, starts, ends, are_messages = self._by_launch
        first, last = launches.searchsorted([time.start_ns, time.end_ns])
        is_meant = are_messages[first:last] == messages
        if not is_meant.any():
            return None
        return Interval(int(starts[first:last][is_meant].min()), int(ends[first:last][is_meant].max()))

    @cached_property
    def _by_launch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """When each kernel was launched, its start, its end, whether it is a message; in order of launch."""
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
    """The trace of one rank, as far as its names mean something.

    Attributes:
        file: Where it comes from.
        rank: Rank of the whole job; None where the trace does not say it.
        host: The name of its machine; None where the trace does not say it.
        base_ns: What its times count from [ns since 1970].
        groups: The process groups of the rank by name, each with its ranks.
        family: The runtime whose names the ranges have; None where a user's patterns find them.
        num_slices: Slices of any name.
        ranges: The ranges whose names mean something.
        other_names: What else was named, and how often.
        steps: The steps of the profiler by their number.
        send_posts: Calls that posted a send, over gloo.
        send_waits: Times from the post of a send to the end of waiting for it, over gloo.
        recv_posts: Calls that posted a receive, over gloo.
        recv_waits: Times from the post of a receive to the end of waiting for it, over gloo.
        kernels: Kernels of a GPU; empty without one.
        optimizer_steps: Steps of any optimizer of torch.optim.
        forward_ops: Ops of a forward pass, those that autograd may come back to.
        backward_ops: Functions that autograd's engine evaluated.
        flow_starts_ns: When a forward op began, by the id of the arrow to its backward.
        flow_ends_ns: When its backward began.
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
        """Add everything that another lane of the same rank has."""
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
        """Whether kernels count, not ranges on the host."""
        return len(self.kernels.times) > 0
