"""``pipesched profile-links``: measure latency and bandwidth between ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipesched.errors import RANK_FAILED
from pipesched.files import JSON, check_outputs
from pipesched.output import complain, plain, progress
from pipesched.sizes import parse_bytes
from pipesched.torch_options import require_gpu


def profile_links(
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the cluster: .json.")],
    ranks: Annotated[int, typer.Option("--ranks", "-p", help="Processes to start on this machine.", min=2)] = 2,
    backend: Annotated[Literal["gloo", "nccl"], typer.Option(help="gloo, or nccl with a GPU per rank.")] = "gloo",
    sizes: Annotated[
        str | None, typer.Option(help="Bytes of the messages, as 1KiB,256KiB; none: 1 KiB to 4 MiB.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Times that each is measured, of which the median counts.", min=1)] = 20,
) -> None:
    """Measure every pair of ranks by ping-pong and write the cluster. Under torchrun: its ranks, on all its nodes."""
    check_outputs((out, JSON))
    if backend == "nccl":
        require_gpu("--backend: got nccl", "--backend gloo")
    measure = ["--out", str(out), "--backend", backend, "--repeats", str(repeats)]
    if sizes is not None:
        measure += ["--sizes", *(str(parse_bytes(size, "--sizes")) for size in sizes.split(","))]
    if "RANK" in os.environ:
        from pipesched.profiles.link_profiler import main

        raise typer.Exit(main(measure))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with progress("measuring links"):
        code, errors = _launch([*command, "-m", "pipesched.profiles.link_profiler", *measure])
    if code != 0:
        lines = errors.splitlines() or ["profile-links failed"]
        said = next((line for line in lines if line.startswith("links:")), lines[-1])
        complain(said)
        raise typer.Exit(RANK_FAILED)
    print(f"wrote {plain(str(out))}")


def _launch(command: list[str]) -> tuple[int, str]:
    """Return the exit code and stderr of `command`; if we are stopped, so are it and the ranks that it started."""
    with subprocess.Popen(  # noqa: S603 -- our own interpreter and module
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    ) as process:
        try:
            _, errors = process.communicate()
        except BaseException:
            process.terminate()  # torchrun then ends its ranks; killed, it would leave them
            raise
        return process.returncode, errors
