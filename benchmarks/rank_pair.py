"""A program as two ranks of a gloo group, with a thread on a core each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from report import show

from pipesched.profiles.processes import pin


def show_as_pair(lines: Iterator[str], out: Path | None) -> None:
    """Run this program again in two processes, which measure the lines of a report together; rank 0 shows them."""
    if "RANK" in os.environ:
        _measure_as_rank(lines, out)
    with tempfile.TemporaryDirectory() as folder:
        given = {"MEET": f"file://{Path(folder) / 'store'}", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        given |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
        processes = [
            subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **given, "RANK": str(rank)})
            for rank in range(2)
        ]
        for process in processes:
            process.wait()


def _measure_as_rank(lines: Iterator[str], out: Path | None) -> NoReturn:
    rank = int(os.environ["RANK"])
    pin(rank, 2, threads=1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=2)
    if rank == 0:
        show(lines, out)
    else:
        deque(lines, maxlen=0)  # measure with rank 0
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's groups may abort a process that ends by itself
