"""Torch settings of a process (number of threads, reuse of freed memory), and the name of its device.

glibc returns a large tensor's memory to the system as soon as the tensor is freed. The next op then waits for new
pages, each cleared by the system. This delay depends on the schedule: an F took up to a third longer under GPipe, which
holds all micro-batches, than under 1F1B. If freed memory is kept, as by the allocators of GPUs, an op takes the same
time under both.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of glibc's ``mallopt``: free bytes above which memory is returned, and the number of mapped tensors."""
_SAID_BY_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
"""Environment variables with the same settings of glibc."""
_USUAL = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65536}
_KEEPING = {_TRIM_THRESHOLD: -1, _MMAP_MAX: 0}


@contextmanager
def computing(threads: int, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Set up torch as in every rank and every profile inside the block, so that their seconds are comparable.

    With glibc, freed memory is kept until the end of the block, unless the environment configures glibc.

    Args:
        threads: Threads of one operation.
        devices: The devices of the computation; its GPUs are initialized.
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
    """Launch a kernel from autograd's thread of each GPU; otherwise cuBLAS warns of a missing context later."""
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


def device_name(device: torch.device) -> str:
    """Return the product name of the processor or GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def library_versions() -> tuple[tuple[str, str], ...]:
    """Return (name, version) of the libraries that affect speed."""
    return (("python", platform.python_version()), ("torch", str(torch.__version__)))
