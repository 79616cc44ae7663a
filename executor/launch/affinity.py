"""Affinity: which rank a process runs, and on which cores."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pipesched.profiles.processes import usable_cores


def ranks_of_processes(rank_to_device: Sequence[int]) -> list[int]:
    """Return the rank that each process runs.

    Torchrun numbers processes machine by machine, and so are devices numbered: the ranks follow their devices.
    """
    return sorted(range(len(rank_to_device)), key=lambda rank: rank_to_device[rank])


def local_device(rank_to_device: Sequence[int], rank: int, local_rank: int, num_local_ranks: int) -> tuple[int, int]:
    """Return which of this machine's devices `rank` is on, from 0, and how many there are.

    The ranks of a machine follow each other, as torchrun numbers them.
    """
    first = rank - local_rank
    devices = sorted(set(rank_to_device[first : first + num_local_ranks]))
    return devices.index(rank_to_device[rank]), len(devices)


def pin(index: int, count: int, threads: int) -> tuple[int, ...]:
    """Give this process the `threads` cores of device `index`, if the machine has as many for all; return its cores.

    A device is as many cores as a rank has threads; the ranks of one device share them.

    Gloo moves each message in a thread of its own. Left alone, the scheduler may wake that thread, and then the rank
    behind it, on the core where another rank computes, and one of them loses a time slice of milliseconds. On its own
    cores a rank disturbs nobody but itself. Call it before gloo's threads start: they inherit the cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        return ()
    cores = usable_cores()
    if count * threads <= len(cores):
        cores = cores[index * threads : (index + 1) * threads]
        os.sched_setaffinity(0, cores)
    return cores
