"""``pipesched profile-links``: measure latency and bandwidth between ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipesched.errors import RANK_FAILED
from pipesched.output import progress


def profile_links(
    out: Annotated[Path, typer.Option("--out", "-o", help="The cluster (JSON).")],
    ranks: Annotated[int, typer.Option("--ranks", "-p", help="Processes to start on this machine.", min=2)] = 2,
    backend: Annotated[str, typer.Option(help="gloo, or nccl with a GPU per rank.")] = "gloo",
) -> None:
    """Measure every pair of ranks by ping-pong and write the cluster. Under torchrun: its ranks, on all its nodes."""
    measure = ["--out", str(out), "--backend", backend]
    if "RANK" in os.environ:
        from profiles.link_profiler import main

        raise typer.Exit(main(measure))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with progress("measuring links"):
        done = subprocess.run(  # noqa: S603 -- our own interpreter and module
            [*command, "-m", "profiles.link_profiler", *measure],
            capture_output=True,
            text=True,
            check=False,
            env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("links:")]
        print(f"pipesched: {said[0] if said else 'profile-links failed: ' + done.stderr[-300:]}", file=sys.stderr)
        raise typer.Exit(RANK_FAILED)
    print(f"wrote {out}")
