"""The cores of this machine: usable cores, pinning, and the load of other programs."""

from __future__ import annotations

import os
import time
from pathlib import Path

_SHORTEST_S = 0.1
"""Shortest measurement: clocks of cores have steps of a hundredth of a second [s]."""


def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores that this process may run on, or of all cores if that is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(usable_cores())


class LoadMeter:
    """Measures the load of other programs on the cores of this process, since the meter was made."""

    def __init__(self) -> None:
        self._begun = self._clocks()

    def others(self) -> float | None:
        """Return the mean number of cores that other programs kept busy, or None if the system does not report it."""
        while time.monotonic() - self._begun[0] < _SHORTEST_S:
            time.sleep(_SHORTEST_S)
        passed_s, own_s, busy_s = (now - before for now, before in zip(self._clocks(), self._begun, strict=True))
        return max(0.0, (busy_s - own_s) / passed_s) if self._begun[2] else None

    @staticmethod
    def _clocks() -> tuple[float, float, float]:
        """Return the time [s], the processor time of this process, and of all processes on its cores [s]."""
        own_s, cores = sum(os.times()[:4]), {f"cpu{core}" for core in usable_cores()}
        try:
            lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        except OSError:
            lines = []
        ticks = 0
        for name, *counts in map(str.split, filter(None, lines)):
            if name in cores:
                user, nice, system, _idle, _wait, *interrupts = map(int, counts[:8])
                ticks += user + nice + system + sum(interrupts)
        return time.monotonic(), own_s, ticks / os.sysconf("SC_CLK_TCK")


def can_bind() -> bool:
    """Return whether processes can be bound to cores here."""
    return hasattr(os, "sched_setaffinity")


def pin(index: int, count: int, threads: int) -> tuple[int, ...]:
    """Bind this process to the cores of its device if there are enough cores for all devices; return its cores.

    Gloo moves each message in a separate thread. Without pinning, the scheduler may wake this thread, and then the rank
    that waits for it, on the core of another rank, and one of them loses a time slice of milliseconds. Call the
    function before gloo's threads start, because they inherit the cores.

    Args:
        index: Number of the device.
        count: Number of devices.
        threads: Cores of a device: one for each thread of a rank. Ranks of one device share its cores.
    """
    if not can_bind():
        return ()
    cores = usable_cores()
    if count * threads <= len(cores):
        cores = cores[index * threads : (index + 1) * threads]
        os.sched_setaffinity(0, cores)
    return cores


def num_sharing(num_pipelines: int, device: str = "cpu") -> int:
    """Return the number of processes that share a core in a run, for the measurement of the sharing price.

    Args:
        num_pipelines: Parallel pipelines of the run, each with a process on every device.
        device: Device of the measurement; on a GPU no sharing price is measured, and the number is 1.
    """
    return num_pipelines if device == "cpu" and can_bind() else 1


def num_companions(num_ranks: int, device: str = "cpu") -> int:
    """Return the number of processes that compute beside a measurement in place of the other ranks of a run.

    Args:
        num_ranks: Ranks of the run; the cores limit the number of processes.
        device: Device of the measurement; on a GPU there are no companions.
    """
    return min(num_ranks, num_cores()) - 1 if device == "cpu" else 0
