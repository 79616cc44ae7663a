"""The position of a device: the op that a GPU stands at, while the host has launched ops far ahead of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import final

import torch

from pipesched.executor.core.clock import CudaEvent, Event, EventPool
from pipesched.schedules.ops import Compute, Op, Overlap

_POLL_S = 0.05
"""Time between two polls of a position [s]."""


@final
class DevicePosition:
    """The op that the device stands at, in the list of one rank.

    The host tells each op before it launches the op. An event goes into the rank's stream first:

        host    at(0)  op 0  at(1)  op 1  at(2)  op 2
        stream    o   =====    o   =====    o   =====      the device stands at the last op whose event it has reached

    Nothing here waits for the device.

    Args:
        device: The GPU; `at` and `wait` record on its current stream, which is the rank's.
        reach: Called by the polling thread with the position of each op that the device reaches, and the op.
        wait: Called with the rank that the device waits for, and then with `NOBODY`.
        make_event: Makes an event; None: a CUDA event of `device`.
    """

    def __init__(
        self,
        device: torch.device,
        reach: Callable[[int, Op], None] = lambda index, op: None,  # noqa: ARG005 -- nobody need listen
        wait: Callable[[int], None] = lambda whom: None,  # noqa: ARG005
        make_event: Callable[[], Event] | None = None,
    ) -> None:
        self._pool = EventPool(make_event or partial(CudaEvent, device, is_timed=False))
        self._reach, self._wait = reach, wait
        self._open: deque[tuple[Event, Callable[[], None]]] = deque()
        self._index: int | None = None
        self._num_launched = self._num_begun = 0
        self._lock = threading.Lock()

    def at(self, index: int, op: Op) -> None:
        """Note that the host has reached `op`, at position `index` of the list."""
        self._num_launched += isinstance(op, Compute | Overlap)
        self._open.append((self._pool.record(), partial(self._come, index, op)))

    def wait(self, whom: int) -> None:
        """Note that the work launched next waits for rank `whom`; `NOBODY` ends the wait."""
        self._open.append((self._pool.record(), partial(self._wait, whom)))

    def oldest_open(self) -> int | None:
        """Return the position of the oldest op that the device has not ended; None before the device's first op.

        Any thread may call this.
        """
        with self._lock:
            while self._open and self._open[0][0].query():
                event, publish = self._open.popleft()
                self._pool.free([event])
                publish()
            return self._index

    def is_behind(self) -> bool:
        """Return whether the host has come to a computation that the device has not begun."""
        self.oldest_open()
        return self._num_begun < self._num_launched

    def _come(self, index: int, op: Op) -> None:
        self._index = index
        self._num_begun += isinstance(op, Compute | Overlap)
        self._reach(index, op)


@contextmanager
def polled(
    positions: Collection[DevicePosition], poll_s: float = _POLL_S, judge: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Poll the positions from a thread inside the block, so that each publishes the op of its device.

    Args:
        positions: The positions; no thread is started without any.
        poll_s: Time between two polls [s].
        judge: Called by the thread after each poll.
    """
    if not positions:
        yield
        return
    is_over = threading.Event()
    arguments = (positions, is_over, poll_s, judge)
    thread = threading.Thread(target=_poll, args=arguments, name="device position", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _poll(
    positions: Collection[DevicePosition], is_over: threading.Event, poll_s: float, judge: Callable[[], None]
) -> None:
    """Poll until the end, and once more then."""
    is_last = False
    while not is_last:
        is_last = is_over.wait(poll_s)
        try:
            for position in positions:
                position.oldest_open()
            judge()
        except RuntimeError:  # the device has failed: so has the rank's own thread, which raises it
            return
