"""The memory meter: how many bytes a rank holds, as the allocator counts them."""

from __future__ import annotations

import ctypes
import sys
from abc import ABC, abstractmethod

import torch


class Meter(ABC):
    """A meter of the bytes that this process has from its allocator: those of its ranks, and any from before."""

    @abstractmethod
    def allocated_bytes(self) -> int:
        """Return what the allocator has given out and not got back."""


class _MallInfo(ctypes.Structure):
    """The counts that glibc keeps of its heap: its ``struct mallinfo2``."""

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
    """The meter of the CPU: it asks malloc, where torch's CPU tensors come from on Linux."""

    def __init__(self) -> None:
        self._mallinfo = ctypes.CDLL(None).mallinfo2
        self._mallinfo.restype = _MallInfo

    def allocated_bytes(self) -> int:
        info = self._mallinfo()
        return int(info.uordblks + info.hblkhd)


class CudaMeter(Meter):
    """The meter of this process' GPU: it asks torch's caching allocator."""

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated()


def make_meter(device: torch.device) -> Meter | None:
    """Return the meter for `device`; None where the allocator cannot be asked."""
    if device.type == "cuda":
        return CudaMeter()
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallinfo2"):
        return HeapMeter()
    return None
