"""The clock of a rank: it marks instants in the order of the rank's work, and reads them when the work is over."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol, Self, final

import torch

_TIES = 16
"""Tries to tie a device's clock to the host's; the tightest one counts."""
_STRIDE_MS = 500.0
"""Longest time read from one event: CUDA gives 32-bit floats, whose steps are 0.03 us here and 1 us at 10 s [ms]."""


class Clock(ABC):
    """A clock that marks instants on one rank and reads them later, in nanoseconds of the host's monotonic clock."""

    @abstractmethod
    def begin(self) -> None:
        """Get ready for a new run; marks of the last run are void."""

    @abstractmethod
    def mark(self) -> int:
        """Return a mark of this instant, in the order of the work that was launched; do not wait."""

    @abstractmethod
    def end(self) -> None:
        """Wait for the work of the run; its marks can be read now."""

    @abstractmethod
    def read_ns(self, mark: int) -> int:
        """Return the time of a mark of the run that has ended."""


@final
class HostClock(Clock):
    """The clock of a CPU, where work is over when the call returns: a mark is its own time."""

    def begin(self) -> None:
        """Do nothing: the host's clock is always right."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def end(self) -> None:
        """Do nothing: on a CPU the work has ended already."""

    def read_ns(self, mark: int) -> int:
        return mark


class _Tie(NamedTuple):
    """An event, and the host's time when the device reached it, with an error of at most half of `width_ns`."""

    width_ns: int
    host_ns: int
    event: Event


@final
class CudaClock(Clock):
    """The clock of one GPU, which works behind its host: a mark is an event on the rank's stream.

    Events of one GPU know the times between them. An event at each end of the run ties them to the host's clock:

        host    |== tie ==|                                       |== tie ==|
        device       0 ------ mark ------ mark ------ mark ----------- 0

    Between the ties the two clocks are assumed to differ by a linear drift, which is removed. Only the ties wait for
    the device. Call all methods with the rank's stream as the current stream of the device.

    Args:
        device: The GPU; every rank needs a clock of its own.
        make_event: Makes an event that knows its time; None: a CUDA event of `device`.
        now_ns: Returns the host's time [ns].
    """

    def __init__(
        self,
        device: torch.device,
        make_event: Callable[[], Event] | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._pool = EventPool(make_event or partial(CudaEvent, device, is_timed=True))
        self._now_ns = now_ns
        self._first: _Tie | None = None
        self._events: list[Event] = []
        self._times_ns: list[int] = []

    def begin(self) -> None:
        if self._first is not None:
            self._pool.free([self._first.event, *self._events])
        self._events, self._times_ns = [], []
        self._first = self._tie()

    def mark(self) -> int:
        self._events.append(self._pool.record())
        return len(self._events) - 1

    def end(self) -> None:
        assert self._first is not None, "the run has begun"
        first, last = self._first, self._tie()
        *marks_ms, last_ms = self._elapsed_ms([*self._events, last.event])
        ns_per_ms = (last.host_ns - first.host_ns) / last_ms if last_ms > 0 else 1e6
        self._times_ns = [first.host_ns + round(ms * ns_per_ms) for ms in marks_ms]
        self._pool.free([last.event])

    def read_ns(self, mark: int) -> int:
        return self._times_ns[mark]

    def _tie(self) -> _Tie:
        """Try a few ties and return the one with the least error; the first try waits until the stream is idle."""
        ties = []
        for _ in range(_TIES):
            before_ns = self._now_ns()
            event = self._pool.record()
            event.synchronize()
            after_ns = self._now_ns()
            ties.append(_Tie(after_ns - before_ns, (before_ns + after_ns) // 2, event))
        best = min(ties, key=lambda tie: tie.width_ns)
        self._pool.free(tie.event for tie in ties if tie is not best)
        return best

    def _elapsed_ms(self, events: list[Event]) -> list[float]:
        """Return the times of events after the first tie, in order, read in strides that 32-bit floats resolve."""
        assert self._first is not None, "the run has begun"
        before, before_ms, times_ms = self._first.event, 0.0, list[float]()
        for event in events:
            event.synchronize()  # one on another stream may be open still
            times_ms.append(before_ms + before.elapsed_time(event))
            if times_ms[-1] > before_ms + _STRIDE_MS:
                before, before_ms = event, times_ms[-1]
        return times_ms


def make_clock(device: torch.device) -> Clock:
    """Return the clock of a rank that computes on `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


class Event(Protocol):
    """An event of one device, with the methods of `torch.cuda.Event`."""

    def record(self) -> None:
        """Record the event behind the work launched so far on the device's current stream."""

    def query(self) -> bool:
        """Return whether the device has reached the event; do not wait."""

    def synchronize(self) -> None:
        """Wait until the device has reached the event."""

    def elapsed_time(self, end: Self, /) -> float:
        """Return the time from this event to `end` [ms]; the device has reached both."""


@final
class CudaEvent:
    """A CUDA event, recorded on the current stream of one GPU, whichever GPU is the current one.

    Args:
        device: The GPU.
        is_timed: Whether the event records its time; events without times are cheaper.
    """

    __slots__ = ("_event", "_index")

    def __init__(self, device: torch.device, *, is_timed: bool) -> None:
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._event = torch.cuda.Event(enable_timing=is_timed)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._index))

    def query(self) -> bool:
        is_over: bool = self._event.query()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return is_over

    def synchronize(self) -> None:
        self._event.synchronize()

    def elapsed_time(self, end: CudaEvent, /) -> float:
        elapsed_ms: float = self._event.elapsed_time(end._event)
        return elapsed_ms


@final
class EventPool:
    """Events that are made once and recorded again and again.

    One thread records. Any thread may free events: `list.append` and `list.pop` are atomic.

    Args:
        make_event: Makes an event where none is free.
    """

    def __init__(self, make_event: Callable[[], Event]) -> None:
        self._make_event = make_event
        self._free: list[Event] = []

    def record(self) -> Event:
        """Record a free event, and return it."""
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event

    def free(self, events: Iterable[Event]) -> None:
        """Take back events that are not read any more."""
        self._free.extend(events)
