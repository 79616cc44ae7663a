"""The default group of a run over gloo: only the ranks of the run, from its start to its end."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 -- loaded later, it would keep the group as a default argument
from torch._C._distributed_c10d import Store

from pipesched.executor import RankFailed, waiting_for
from pipesched.executor.transport import Groups
from pipesched.profiles.processes import open_sockets, strangers


@contextmanager
def default_group(groups: Groups, rank: int, size: int, store: Store, patience: timedelta) -> Iterator[None]:
    """Have the default group, which is gloo's, and in the end no group.

    Communicators of a failed rank are left to `abort_failed`: to destroy one waits for its kernels, which may wait for
    another rank for ever; and the rank is to tell its error first.
    """
    is_over = False
    try:
        with waiting_for(f"the other ranks of rank {rank}"), among_ourselves(rank):
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
        yield
        is_over = True
    finally:
        if groups.are_communicators and not is_over:
            if not _failed:
                atexit.register(abort_failed)
            _failed.append(groups)
        elif dist.is_initialized():
            # the last reference ends gloo's threads: one that frees a tensor while Python shuts down aborts the process
            dist.destroy_process_group()


_failed: list[Groups] = []
"""The groups of a failed run."""


def abort_failed(*, gives_up: bool = False) -> None:
    """Abort the communicators that a failed run has left; call it after the error is written.

    Args:
        gives_up: Whether the process continues, and may make other groups. It then waits for NCCL's threads.
    """
    for groups in _failed:
        groups.abort()
    if gives_up and _failed:
        dist.distributed_c10d._abort_process_group()  # noqa: SLF001 -- to destroy them would wait for their kernels
    _failed.clear()


@contextmanager
def among_ourselves(rank: int) -> Iterator[None]:
    """Refuse connections that another user of this machine makes to this rank inside the block.

    Raises:
        RankFailed: Another user has connected; the message has the number of this user.
    """
    known = open_sockets()
    yield
    others = strangers(known)
    if others:
        raise RankFailed(
            f"rank {rank}: user {others[0]} of this machine has connected in place of another rank; nothing that came "
            "from there was used"
        )
