"""Affinity: which rank a process runs, and on which of its machine's devices."""

from __future__ import annotations

from collections.abc import Sequence


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
