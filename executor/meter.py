"""How many bytes a rank holds: asked of the allocator itself, not of our own books."""

from __future__ import annotations

import ctypes
import sys
from abc import ABC, abstractmethod

import torch


class Meter(ABC):
    """Says how many bytes this process holds for its ranks."""

    def __init__(self) -> None:
        self._zero = 0

    def begin(self, resident_bytes: int) -> None:
        """Tie the allocator's count to what is known: `resident_bytes` of tensors are held at this moment."""
        self._zero = self.allocated_bytes() - resident_bytes

    def held_bytes(self) -> int:
        """Return the bytes held now: the resident ones and what was allocated since `begin`."""
        # what others allocated before `begin` and freed since would count below nothing
        return max(0, self.allocated_bytes() - self._zero)

    @abstractmethod
    def allocated_bytes(self) -> int:
        """Return what the allocator has given out and not got back."""


class _MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


class HeapMeter(Meter):
    """Asks malloc: on Linux torch's CPU tensors come from there."""

    def __init__(self) -> None:
        super().__init__()
        self._mallinfo = ctypes.CDLL(None).mallinfo2
        self._mallinfo.restype = _MallInfo

    def allocated_bytes(self) -> int:
        info = self._mallinfo()
        return int(info.uordblks + info.hblkhd)


class CudaMeter(Meter):
    """Asks torch's caching allocator for this process' GPU."""

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated()


def make_meter(device: torch.device) -> Meter | None:
    """Return the meter for `device`; None where the allocator cannot be asked."""
    if device.type == "cuda":
        return CudaMeter()
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallinfo2"):
        return HeapMeter()
    return None
