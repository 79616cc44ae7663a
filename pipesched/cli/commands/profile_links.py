"""``pipesched profile-links``: measure latency and bandwidth between ranks, and the overhead of messages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import pipesched
from pipesched.cli.byte_sizes import parse_bytes
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.torch_options import require_gpu
from pipesched.cli.output.output_files import JSON, check_outputs, emit
from pipesched.cli.terminal import print_result, progress_bar
from pipesched.questions import LinkSettings, NumRanks
from pipesched.schedules.common import values_of


@grouped
def profile_links(
    out: Annotated[Path, out_option("Write the cluster: .json.")],
    num_ranks: NumRanks = 2,
    settings: LinkSettings = LinkSettings(),  # noqa: B008 -- frozen
    sizes: Annotated[
        str | None, typer.Option(help="Sizes of the messages, as 1KiB,256KiB (default: 1 KiB to 4 MiB).")
    ] = None,
    json: Json = False,
) -> None:
    """Measure every pair of ranks by ping-pong, over gloo also two that compute, and write the cluster.

    Under torchrun, measure its ranks on all its nodes, by ping-pong alone.
    """
    check_outputs((out, JSON))
    if settings.backend == "nccl":
        require_gpu("--backend: got nccl", "--backend gloo")
    sizes_bytes = None if sizes is None else [parse_bytes(size, "--sizes") for size in sizes.split(",")]
    if "RANK" in os.environ:
        from pipesched.profiles.measuring import main

        measure = ["--out", str(out), "--backend", settings.backend, "--repeats", str(settings.repeats)]
        raise typer.Exit(main(measure if sizes_bytes is None else [*measure, "--sizes", *map(str, sizes_bytes)]))
    with progress_bar("measuring links"):
        measurement = pipesched.profile_links(num_ranks, sizes_bytes=sizes_bytes, **values_of(settings))
    measurement.save(out)
    if json:
        from pipesched.profiles.io import cluster_text

        emit(cluster_text(measurement.cluster, str(out)), None)
    else:
        print_result(measurement.table())
