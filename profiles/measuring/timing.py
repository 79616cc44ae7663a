"""Timers of laps, and the yardstick: a fixed kernel that measures the present speed of the machine.

The kernel runs on as many cores as the ranks of a run, so that another program on one of these cores slows it. Its
time is a mean, not a median: interruptions of a tenth of a second slow a run too.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import final

import torch

from pipesched.profiles import DeviceKind


@final
class Timer:
    """Measures the seconds between marks: by the clock of the host, and on a GPU by events that its stream reaches.

    Attributes:
        launches_s: Seconds that the host took to launch each of the last laps; empty without a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = device if device.type == "cuda" else None
        self._host_s: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.launches_s: list[float] = []

    def mark(self) -> None:
        """Record the present time: the end of a lap and the start of the next."""
        self._host_s.append(time.perf_counter())
        if self._gpu is not None:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # untyped in torch
            event.record(torch.cuda.current_stream(self._gpu))
            self._events.append(event)

    def laps_s(self) -> list[float]:
        """Return the seconds between successive marks, and clear the marks."""
        host_s, self._host_s = [end - start for start, end in pairwise(self._host_s)], []
        if self._gpu is None:
            return host_s
        self.launches_s = host_s
        events, self._events = self._events, []
        torch.cuda.synchronize(self._gpu)
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(events)]


_SIZE = {"cpu": 256, "cuda": 2048}
"""Size of the square matrices of the multiplications, which take about a millisecond on a core."""
_WARMUP = {"cpu": 20, "cuda": 200}
"""Runs before the timing: clocks of GPUs take a while to rise."""
_COUNT = 200
SHORT_COUNT = 100
"""Runs before and after each profile and each run, which take little time."""


def yardstick_s(num_busy: int, device: torch.device | DeviceKind = "cpu", count: int = _COUNT) -> float:
    """Return the mean time of the kernel while `num_busy` threads run it at once [s].

    Args:
        num_busy: Number of threads; ignored on a GPU, which has one.
        device: The cores, or a GPU; a GPU without an index is the current one.
        count: Runs of the kernel in each thread.
    """
    timed = torch.device(device)
    is_gpu = timed.type == "cuda"
    if is_gpu and timed.index is None:
        timed = torch.device("cuda", torch.cuda.current_device())
    kind: DeviceKind = "cuda" if is_gpu else "cpu"
    matrix, other = (torch.ones(_SIZE[kind], _SIZE[kind], device=timed) for _ in range(2))

    def work(count: int) -> None:
        out = torch.empty_like(matrix)
        for _ in range(count):
            torch.mm(matrix, other, out=out)
        if is_gpu:
            torch.cuda.synchronize(timed)

    width = 1 if is_gpu else num_busy
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(width) as pool:
            # a GPU is timed from this thread: a new one begins on GPU 0, without a handle of cuBLAS
            run = map if is_gpu else pool.map
            work(_WARMUP[kind])  # the first one loads libraries
            begun_s = time.perf_counter()
            list(run(work, [count] * width))
            return (time.perf_counter() - begun_s) / count
    finally:
        torch.set_num_threads(num_threads)
