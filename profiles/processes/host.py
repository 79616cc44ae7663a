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


def can_bind() -> bool:
    """Return whether processes can be bound to cores here."""
    return hasattr(os, "sched_setaffinity")


def num_sharing(num_pipelines: int, device: str = "cpu") -> int:
    """Return how many processes share a core in a measurement of what that costs, as those of a run would.

    Args:
        num_pipelines: Parallel pipelines of the run, each with a process on every device.
        device: Device of the measurement; a GPU is shared by utilisation.
    """
    return num_pipelines if device == "cpu" and can_bind() else 1


def num_companions(num_ranks: int, device: str = "cpu") -> int:
    """Return how many processes keep cores busy beside a measurement, as the other ranks of a run would.

    Args:
        num_ranks: Ranks of the run: there are as many processes as ranks, but no more than cores.
        device: Device of the measurement; beside one on a GPU there are no companions.
    """
    return min(num_ranks, num_cores()) - 1 if device == "cpu" else 0
