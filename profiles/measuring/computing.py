"""How torch computes in a process: with so many threads, and with the memory that it frees kept for what comes next.

glibc gives a large tensor's memory back to the system as soon as it is freed, and the system hands it out again page by
page, cleared, which takes an op longer than reusing it. How often that happens depends on what else is held: an F took
up to a third longer under GPipe, which holds all micro-batches, than under 1F1B. With freed memory kept, as allocators
of accelerators keep it, an op takes the same under both.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of glibc's ``mallopt``: free bytes above which memory goes back, and how many tensors have maps."""
_SAID_BY_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
"""Variables of the environment that say the same to glibc."""
_USUAL = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65536}
_KEEPING = {_TRIM_THRESHOLD: -1, _MMAP_MAX: 0}


@contextmanager
def computing(threads: int, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Let torch compute as every rank does, and a profile too, so that seconds of one hold for the other.

    Freed memory is kept where the process has glibc, unless the environment says what it keeps; it goes back to the
    system in the end.

    Args:
        threads: Threads of one operation.
        devices: The devices that are computed on; GPUs among them get ready.
    """
    _wake_autograd(devices)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    _allocate(_KEEPING)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _allocate(_USUAL)
        _give_back()


def _wake_autograd(devices: Iterable[torch.device]) -> None:
    """Let autograd's thread of each GPU launch a kernel: before its first one cuBLAS warns of a missing context."""
    for device in devices:
        if device.type == "cuda":
            number = torch.ones(1, device=device, requires_grad=True)
            (number * number).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _allocate(parameters: dict[int, int]) -> None:
    mallopt = _of_glibc("mallopt")
    for parameter, value in parameters.items():
        if mallopt is not None:
            mallopt(parameter, value)


def _give_back() -> None:
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    if sys.platform != "linux" or any(variable in os.environ for variable in _SAID_BY_USERS):
        return None
    return getattr(ctypes.CDLL(None), name, None)
