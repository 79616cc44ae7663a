"""One of two ranks on gloo; prints the tensors that it received."""

from __future__ import annotations

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(seconds=600)
"""Time-out of messages that arrive."""
SOON = timedelta(seconds=2)
"""Time-out of messages that never arrive."""


def exchange(other: int) -> bool:
    """Both send before they receive, more than any buffer holds."""
    big = 1 << 20
    sent = dist.isend(torch.full((big,), 1.0), other)
    got = torch.zeros(big)
    dist.irecv(got, other).wait(PATIENCE)
    sent.wait(PATIENCE)
    return bool(got.eq(1.0).all())


def in_order(rank: int, other: int) -> list[float]:
    """Three Sends posted at once; three Recvs, the last one waited for first."""
    if rank == 0:
        for work in [dist.isend(torch.full((4,), float(i)), other) for i in range(3)]:
            work.wait(PATIENCE)
        return []
    buffers = [torch.empty(4) for _ in range(3)]
    for work in [dist.irecv(buffer, other) for buffer in buffers][::-1]:
        work.wait(PATIENCE)
    return [buffer[0].item() for buffer in buffers]


def unreceived(rank: int, other: int, store: dist.Store) -> bool:
    """A Send of one number that nobody receives; the peer stays until the sender has given up."""
    if rank == 1:
        store.wait(["gave up"])
        return False
    try:
        dist.isend(torch.ones(1), other).wait(SOON)
    except RuntimeError:
        return False
    finally:
        store.set("gave up", "")
    return True


def main(arguments: list[str]) -> int:
    rank = int(os.environ["RANK"])
    other, store = 1 - rank, dist.FileStore(f"{arguments[0]}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    answers = {"exchange": exchange(other), "in_order": in_order(rank, other)}
    print(json.dumps(answers | {"unreceived": unreceived(rank, other, store)}), flush=True)
    return 0
