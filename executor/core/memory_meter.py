"""The memory meter: the bytes that a rank holds, by the counts of its allocator."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, final

import torch


class Allocator(Protocol):
    """The allocator of a device, which all ranks of a process on that device share."""

    def read_bytes(self) -> tuple[int, int]:
        """Return the bytes allocated now, and the peak since `restart`."""

    def restart(self) -> None:
        """Forget the peak."""

    def note(self) -> None:
        """Take the bytes allocated now into the peak, if the allocator keeps no peak itself."""


_COUNTS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
"""Names of the counts of glibc's heap, in the order of ``struct mallinfo2``."""


class _MallInfo(ctypes.Structure):
    """The counts of glibc's heap: ``struct mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in _COUNTS.split()]


@final
class Heap:
    """The heap of malloc, the source of torch's CPU tensors on Linux; its peak is the maximum of the notes."""

    def __init__(self) -> None:
        self._mallinfo = ctypes.CDLL(None).mallinfo2
        self._mallinfo.restype = _MallInfo
        self._noted = 0

    def read_bytes(self) -> tuple[int, int]:
        info = self._mallinfo()
        now = int(info.uordblks + info.hblkhd)
        return now, max(now, self._noted)

    def restart(self) -> None:
        self._noted = 0

    def note(self) -> None:
        self._noted = self.read_bytes()[1]


@final
class CudaAllocator:
    """PyTorch's caching allocator of one GPU, which keeps an exact peak: `torch.cuda.max_memory_allocated`.

    A tensor counts until Python frees it, even if its streams still use it.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it untyped; no counts before it
        self._device = device

    def read_bytes(self) -> tuple[int, int]:
        # memory_allocated and max_memory_allocated read all counts too, and sort them, each time
        allocated = torch.cuda.memory_stats_as_nested_dict(self._device)["allocated_bytes"]["all"]
        return int(allocated["current"]), int(allocated["peak"])

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def note(self) -> None:
        """Do nothing: no allocation is missed."""


@final
class Meter:
    """The bytes that one rank holds: allocations less frees since the meter was made, in the rank's own turns.

    Ranks that share a process take turns on one thread. An op spans several turns if it waits for others:

        rank 0   |F1 ..|           |.. F1, F2 ..|
        rank 1           |F0, F1 ..|              |..

    A rank alone in its process needs no turns: all allocations are its own.

    Args:
        allocator: Allocator of the rank's device.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._held = 0
        self._offset: int | None = None
        self.enter()
        self.begin_op()

    def enter(self) -> None:
        """Begin a turn: other ranks have made the changes since the last turn."""
        self._allocator.restart()
        self._offset = self._held - self._allocator.read_bytes()[0]

    def leave(self) -> None:
        """End the turn."""
        self._look()
        self._offset = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Enter a turn, and leave it at the end of the block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def held_bytes(self) -> int:
        """Return the bytes that the rank holds now; outside of its turns, the bytes at the end of the last turn."""
        if self._offset is not None:
            self._held = self._offset + self._allocator.read_bytes()[0]
        return self._held

    def begin_op(self) -> None:
        """Forget the peak of the last op."""
        self._peak = -sys.maxsize
        self._allocator.restart()

    def note(self) -> None:
        """Record the bytes inside an op, for allocators without an exact peak."""
        self._allocator.note()

    def end_op(self) -> tuple[int, int]:
        """Return the bytes held now, and the peak since `begin_op`; the next op begins."""
        self._look()
        bytes_of_op = self._held, self._peak
        self.begin_op()
        return bytes_of_op

    def _look(self) -> None:
        if self._offset is not None:
            now, peak = self._allocator.read_bytes()
            self._held = self._offset + now
            self._peak = max(self._peak, self._offset + peak)


def make_meter(device: torch.device) -> Meter | None:
    """Return the meter for `device`, or None if its allocator cannot be read."""
    if device.type == "cuda":
        return Meter(CudaAllocator(device))
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallinfo2"):
        return Meter(Heap())
    return None
