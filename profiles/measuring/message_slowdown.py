"""The slowdown of a rank's computations while a message of the rank is in flight.

Gloo moves messages in a thread of its own, on the core of its rank; NCCL moves them by kernels, on the rank's GPU. So
the same multiplications are timed alone and beside messages, in turn, so that a drift of the machine cancels:

    round   alone ──── rank 0 sends ──── alone ──── rank 1 sends
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from pipesched.profiles import ProfileError

_SIZE = {"cpu": 128, "cuda": 1024}
"""Size of the square matrices of the multiplications, which take about a tenth of a millisecond."""
_ALONE = 200
"""Number of multiplications without a message."""
_MESSAGES = 40
"""Number of messages of one rank in a round."""


def measure_slowdown(num_bytes: int, rounds: int, device: torch.device) -> float:
    """Return the slowdown of ranks 0 and 1 while a message is in flight between them: extra time as a share.

    Negative results count as 0. Call it on all ranks of an initialised process group of two.

    Args:
        num_bytes: Size of the messages.
        rounds: Number of rounds, whose median counts.
        device: Device of the computations and the messages.

    Raises:
        ProfileError: The number of ranks is not two.
    """
    if dist.get_world_size() != 2:
        raise ProfileError(f"links: got {dist.get_world_size()} ranks that compute beside messages, expected 2")
    matrix = torch.ones(_SIZE[device.type], _SIZE[device.type], device=device)
    out = torch.empty_like(matrix)

    def work() -> None:
        torch.mm(matrix, matrix, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    ratios = []
    for _ in range(rounds + 1):
        for sender in (0, 1):
            dist.barrier()
            alone_s = _alone_s(work)
            dist.barrier()
            ratios.append(_beside_s(work, sender, torch.zeros(num_bytes, dtype=torch.uint8, device=device)) / alone_s)
    ratio = torch.tensor(
        [statistics.median(ratios[2:])], dtype=torch.float64, device=device
    )  # the first round warms up
    dist.all_reduce(ratio)
    return max(0.0, ratio.item() / 2 - 1.0)


def _alone_s(work: Callable[[], None]) -> float:
    begun_s = time.perf_counter()
    for _ in range(_ALONE):
        work()
    return (time.perf_counter() - begun_s) / _ALONE


def _beside_s(work: Callable[[], None], sender: int, buffer: torch.Tensor) -> float:
    """Return the mean time of `work` while messages go from `sender` to the other rank, one after another [s]."""
    is_sender = dist.get_rank() == sender

    def messages() -> None:
        if buffer.is_cuda:
            torch.cuda.set_device(buffer.device)  # a thread begins on GPU 0
        for _ in range(_MESSAGES):
            if is_sender:
                dist.send(buffer, 1 - sender)
            else:
                dist.recv(buffer, sender)

    thread, count, begun_s = threading.Thread(target=messages), 0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        work()
        count += 1
    thread.join()
    return (time.perf_counter() - begun_s) / max(1, count)
