"""The yardstick: a fixed kernel, timed now and then, which says how fast the machine is just now.

It keeps as many cores busy as the ranks of a run do, so that another program which takes one of them is seen, and it
says the mean and not the median: what is taken away by turns, a tenth of a second at a time, slows a run too.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import torch

from pipesched.profiles import DeviceKind

_SIZE = {"cpu": 256, "cuda": 2048}
"""The size of the square matrices that are multiplied: on a core in about a millisecond."""
_COUNT = 200


def yardstick_s(num_busy: int, device: DeviceKind = "cpu") -> float:
    """Return how long the kernel takes, in the mean, while so many threads run it at once [s].

    Args:
        num_busy: Threads; on a GPU there is one.
        device: Whether a core or a GPU is timed.
    """
    size = _SIZE[device]
    matrix, other = (torch.ones(size, size, device=device) for _ in range(2))

    def work(_: int) -> None:
        out = torch.empty_like(matrix)
        for _ in range(_COUNT):
            torch.mm(matrix, other, out=out)
        if device == "cuda":
            torch.cuda.synchronize()

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(1 if device == "cuda" else num_busy) as pool:
            work(0)  # the first one loads what is needed
            begun_s = time.perf_counter()
            list(pool.map(work, range(1 if device == "cuda" else num_busy)))
            return (time.perf_counter() - begun_s) / _COUNT
    finally:
        torch.set_num_threads(num_threads)
