"""Which cores a rank runs on."""

from __future__ import annotations

import os


def pin(local_rank: int, num_local_ranks: int, threads: int) -> tuple[int, ...]:
    """Give this process `threads` cores of its own, if the machine has as many for every rank; return its cores.

    Gloo moves each message in a thread of its own. Left alone, the scheduler may wake that thread, and then the rank
    behind it, on the core where another rank computes, and one of them loses a time slice of milliseconds. On its own
    cores a rank disturbs nobody but itself. Call it before gloo's threads start: they inherit the cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        return ()
    cores = sorted(os.sched_getaffinity(0))
    if num_local_ranks * threads <= len(cores):
        cores = cores[local_rank * threads : (local_rank + 1) * threads]
        os.sched_setaffinity(0, cores)
    return tuple(cores)
