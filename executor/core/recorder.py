"""The recorder: when each op was reached, began and ended, from which a measured Timeline is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from pipesched.executor.core.clock import Clock
from pipesched.executor.core.memory_meter import Meter

_LETTING_GO_S, _LOOK_S = 0.1, 0.001
"""Time that threads of libraries may take to free tensors of a finished list, and time between two checks [s]."""
_SMALL_BYTES, _OP_BYTES = 64 * 1024, 128
"""Growth of other memory that is accepted at once: fixed, and per op for its marks and loss [bytes]."""


class Recorder:
    """The record of a rank's ops: three marks for each, in list order, and the bytes held after and inside it.

    Args:
        clock: Makes the marks.
        meter: Counts the bytes, or None for no bytes.
        keeps: Whether marks are kept. Otherwise ops are only counted, so that a run may have any length, and the clock
            is unused.

    Attributes:
        mark: Returns a mark of this instant; the clock's own method, as it is called three times per op.
    """

    def __init__(self, clock: Clock, meter: Meter | None = None, *, keeps: bool = True) -> None:
        self._clock = clock
        self._meter = meter
        self._keeps = keeps
        self.mark: Callable[[], int] = clock.mark if keeps else _no_mark
        self.begin(0)

    @property
    def has_meter(self) -> bool:
        """Whether bytes are counted; if not, callers need not sum resident bytes."""
        return self._meter is not None

    def begin(self, resident_bytes: int) -> None:
        """Forget the last run; `resident_bytes` are held now, counted as for `end`.

        Call this, like `end`, in a turn of the rank.
        """
        self._count = 0
        self._marks: list[tuple[int, int, int]] = []
        self._held: list[int] = []
        self._most: list[int] = []
        self._others_bytes = 0
        if self._keeps:
            self._clock.begin()
        if self._meter is not None:
            self._others_bytes = self._meter.held_bytes() - resident_bytes
            self._meter.begin_op()

    def end(self, resident_bytes: int) -> None:
        """End the list; `resident_bytes` are all bytes that the stages hold, such as weights and optimizer state.

        The other allocated bytes do not belong to the ranks. They are measured at the end, because some are only made
        during the run: kernels compiled at their first use, buffers of libraries. A thread of gloo may still hold the
        gradients of the last Reduce. If more is allocated than at the beginning, the recorder waits a moment for such
        threads.
        """
        if self._keeps:
            self._clock.end()
        if self._meter is None:
            return
        usual_bytes = self._others_bytes + _SMALL_BYTES + _OP_BYTES * self._count
        until_s = time.monotonic() + _LETTING_GO_S
        while (others_bytes := self._meter.held_bytes() - resident_bytes) > usual_bytes:
            if time.monotonic() > until_s:
                break
            time.sleep(_LOOK_S)
        self._others_bytes = others_bytes

    def __len__(self) -> int:
        """Return the number of finished ops."""
        return self._count

    def turn(self) -> AbstractContextManager[None]:
        """Return the context of a turn of the rank among the ranks of a process: its allocations are the rank's."""
        return nullcontext() if self._meter is None else self._meter.turn()

    def note(self) -> None:
        """Record the bytes held now, inside the current op; a stage calls it at its peaks."""
        if self._meter is not None and self._keeps:
            self._meter.note()

    def add(self, posted: int, start: int, end: int) -> None:
        """Record one op: when it was reached, when its work began, when it ended."""
        self._count += 1
        if not self._keeps:
            return
        self._marks.append((posted, start, end))
        if self._meter is not None:
            held, most = self._meter.end_op()
            self._held.append(held)
            self._most.append(most)

    def extend(self, index: int, end: int) -> None:
        """Set a later end of the op at `index`, for an op that only posts."""
        if self._keeps:
            posted, start, _ = self._marks[index]
            self._marks[index] = (posted, start, end)

    def times_ns(self) -> list[tuple[int, int, int]]:
        """Return (posted, start, end) of every op of the list, in order [ns]."""
        read = self._clock.read_ns
        return [(read(posted), read(start), read(end)) for posted, start, end in self._marks]

    def held_bytes(self) -> list[int]:
        """Return the bytes held after every op, known when the run has ended; empty without a meter."""
        return self._of_ranks(self._held)

    def most_bytes(self) -> list[int]:
        """Return the peak of every op: exact on a GPU, on a CPU the maximum of its notes and the bytes after it."""
        return self._of_ranks(self._most)

    def _of_ranks(self, held: list[int]) -> list[int]:
        return [max(0, num_bytes - self._others_bytes) for num_bytes in held]


def _no_mark() -> int:
    return 0
