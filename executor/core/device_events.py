"""Events of a device: marks in a stream of work, which the host can ask later whether and when they were reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, Self, final

import torch


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
