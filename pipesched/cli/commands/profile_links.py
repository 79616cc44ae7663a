"""``pipesched profile-links``: measure latency and bandwidth between ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipesched.cli.errors import RANK_FAILED
from pipesched.cli.options.byte_sizes import parse_bytes
from pipesched.cli.options.torch_options import require_gpu
from pipesched.cli.output.output_files import JSON, check_outputs
from pipesched.cli.output.terminal import complain, progress_bar, terminal_line

_POLL_S = 0.02


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
        from pipesched.profiles.measuring import main

        raise typer.Exit(main(measure))
    with progress_bar("measuring links"):
        errors = _launch(ranks, measure, is_fresh=backend == "nccl")
    if errors is not None:
        lines = errors.splitlines() or ["profile-links failed"]
        said = next((line for line in lines if line.startswith("links:")), lines[-1])
        complain(said)
        raise typer.Exit(RANK_FAILED)
    print(f"wrote {terminal_line(str(out))}")


def _launch(ranks: int, arguments: list[str], *, is_fresh: bool) -> str | None:
    """Measure with one process per rank; return what they said if one failed, else None."""
    from pipesched.executor.launch import job_folder, started

    with job_folder() as folder:
        words = [*arguments, "--meet", f"file://{folder.absolute()}/store"]
        with started(
            ranks, "pipesched.profiles.measuring.link_profiler", words, folder, is_fresh=is_fresh
        ) as processes:
            codes = [process.poll() for process in processes]
            while None in codes and not any(codes):
                time.sleep(_POLL_S)
                codes = [process.poll() for process in processes]
        if not any(codes):
            return None
        logs = [folder / f"log{rank}" for rank, code in enumerate(codes) if code]
        return "\n".join(log.read_text(errors="replace") for log in logs if log.exists())
