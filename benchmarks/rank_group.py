"""A program as the ranks of a gloo group: a process with one thread each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from report import show

from pipesched.profiles.processes import pin


def run_ranks(arguments: Sequence[str], num_ranks: int, timeout_s: float | None = None) -> None:
    """Run Python with `arguments` in a process per rank; each calls `be_rank`.

    Raises:
        RuntimeError: A rank failed; with the end of its error.
        TimeoutExpired: A rank takes longer than `timeout_s`; all are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = {"MEET": f"file://{Path(folder) / 'store'}", "WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
        given |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore", "PYTHONPATH": os.pathsep.join(sys.path)}
        errors = [Path(folder) / f"error{rank}" for rank in range(num_ranks)]
        processes = []
        for rank, error in enumerate(errors):
            own = {**os.environ, **given, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            with error.open("w") as file:
                processes.append(subprocess.Popen([sys.executable, *arguments], env=own, stderr=file))
        try:
            codes = [process.wait(timeout_s) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for code, error in zip(codes, errors, strict=True):
            if code:
                raise RuntimeError(error.read_text()[-300:])


def be_rank(work: Callable[[int], object]) -> NoReturn:
    """Join the group of `run_ranks`, do the work of this rank, given its number, and end the process."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=size)
    work(rank)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's groups may abort a process that ends by itself


def show_as_pair(lines: Iterator[str], out: Path | None) -> None:
    """Run this program again as two ranks on a core each, which measure the lines together; rank 0 shows them."""

    def measure(rank: int) -> None:
        pin(rank, 2, threads=1)
        if rank == 0:
            show(lines, out)
        else:
            deque(lines, maxlen=0)  # measure with rank 0

    if "RANK" in os.environ:
        be_rank(measure)
    run_ranks(sys.argv, 2)
