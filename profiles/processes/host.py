"""The cores of this machine that a process may use."""

from __future__ import annotations

import os


def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores that this process may run on; where nobody can say, of all that there are."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(usable_cores())
