"""The recorder: when each op was reached, began and ended, from which a measured Timeline is made."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import torch

from pipesched.executor.core.memory_meter import Meter

_LETTING_GO_S, _LOOK_S = 0.1, 0.001
"""How long threads of libraries may take to let go of what a list was over with, and how often one looks [s]."""
_SMALL_BYTES, _OP_BYTES = 64 * 1024, 128
"""What may be added to what is not the ranks', and nobody waits for: always, and for the marks and losses of an op."""


class Clock(ABC):
    """A clock that marks instants on one rank and reads them later, in nanoseconds of the host's monotonic clock."""

    @abstractmethod
    def mark(self) -> object:
        """Return a mark of this instant, in the order of the work that was launched."""

    @abstractmethod
    def read_ns(self, mark: object) -> int:
        """Return when `mark` was; call it after the work is over."""

    @abstractmethod
    def begin(self) -> None:
        """Be ready for a new run."""


class HostClock(Clock):
    """The clock of a CPU, where work is over when the call returns."""

    def begin(self) -> None:
        """Nothing to do: the host's clock is always right."""

    def mark(self) -> object:
        return time.perf_counter_ns()

    def read_ns(self, mark: object) -> int:
        assert isinstance(mark, int)
        return mark


class CudaClock(Clock):
    """The clock of a GPU, where work ends later: an event per instant, tied to the host's clock at `begin`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        torch.cuda.synchronize()
        self._zero = _event()
        self._zero.record()
        self._zero.synchronize()
        self._zero_ns = time.perf_counter_ns()

    def mark(self) -> object:
        event = _event()
        event.record()
        return event

    def read_ns(self, mark: object) -> int:
        assert isinstance(mark, torch.cuda.Event)
        mark.synchronize()
        elapsed_ms: float = self._zero.elapsed_time(mark)
        return self._zero_ns + round(elapsed_ms * 1e6)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped


class Recorder:
    """The record of a rank's ops: three marks for each, in list order, and the bytes held after and inside it.

    Args:
        clock: Makes the marks.
        meter: Says the bytes; None: nobody asks.
        keeps: False: the ops are counted, and no more is kept of them, however many they are.

    Attributes:
        mark: Returns a mark of this instant; the clock's own, as it is called three times per op.
    """

    def __init__(self, clock: Clock, meter: Meter | None = None, *, keeps: bool = True) -> None:
        self._clock = clock
        self._meter = meter
        self._keeps = keeps
        self.mark = clock.mark
        self.begin(0)

    @property
    def has_meter(self) -> bool:
        """Whether bytes are asked; what is resident need not be added up where they are not."""
        return self._meter is not None

    def begin(self, resident_bytes: int) -> None:
        """Forget the last run; `resident_bytes` are held now, as `end` is told them."""
        self._clock.begin()
        self._count = 0
        self._marks: list[tuple[object, object, object]] = []
        self._allocated: list[int] = []
        self._most: list[int] = []
        self._inside = 0
        self._others_bytes = 0 if self._meter is None else self._meter.allocated_bytes() - resident_bytes

    def end(self, resident_bytes: int) -> None:
        """Note that the list is over: `resident_bytes` of weights, optimizer state and the like are all that is held.

        The rest of what is allocated is not the ranks'. It is told apart at the end, as some of it is only made on the
        way: kernels that are compiled at their first use, buffers that libraries keep. A thread of gloo may still hold
        the gradients of the last Reduce then: where there is more than at the beginning, it is given time to let go.
        """
        if self._meter is None:
            return
        usual_bytes = self._others_bytes + _SMALL_BYTES + _OP_BYTES * self._count
        until_s = time.monotonic() + _LETTING_GO_S
        while (others_bytes := self._meter.allocated_bytes() - resident_bytes) > usual_bytes:
            if time.monotonic() > until_s:
                break
            time.sleep(_LOOK_S)
        self._others_bytes = others_bytes

    def __len__(self) -> int:
        """Return how many ops are over."""
        return self._count

    def note(self) -> None:
        """See what is held now, inside the op that is going on; a stage calls it where that is most."""
        if self._meter is not None and self._keeps:
            self._inside = max(self._inside, self._meter.allocated_bytes())

    def add(self, posted: object, start: object, end: object) -> None:
        """Note one op: when it was reached, when its work began, when it ended."""
        self._count += 1
        if not self._keeps:
            return
        self._marks.append((posted, start, end))
        if self._meter is not None:
            allocated = self._meter.allocated_bytes()
            self._allocated.append(allocated)
            self._most.append(max(allocated, self._inside))
            self._inside = 0

    def extend(self, index: int, end: object) -> None:
        """Note that the op at `index` was over only then: of one that posts, and whose end others wait for."""
        if self._keeps:
            posted, start, _ = self._marks[index]
            self._marks[index] = (posted, start, end)

    def times_ns(self) -> list[tuple[int, int, int]]:
        """Return (posted, start, end) of every op of the list, in order [ns]."""
        read = self._clock.read_ns
        return [(read(posted), read(start), read(end)) for posted, start, end in self._marks]

    def held_bytes(self) -> list[int]:
        """Return the bytes held after every op, known when the run has ended; empty without a meter."""
        return self._of_ranks(self._allocated)

    def most_bytes(self) -> list[int]:
        """Return the most bytes held in every op, from what was noted in it to what is held after it."""
        return self._of_ranks(self._most)

    def _of_ranks(self, allocated: list[int]) -> list[int]:
        return [max(0, num_bytes - self._others_bytes) for num_bytes in allocated]
