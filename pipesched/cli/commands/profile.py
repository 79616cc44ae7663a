"""``pipesched profile``: measure a model's layers on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.schedule_options import Json, Seed, out_option
from pipesched.cli.options.torch_options import (
    DeviceOption,
    DtypeOption,
    ModelName,
    Optimizer,
    Threads,
    require_gpu,
)
from pipesched.cli.output.output_files import JSON, check_outputs, emit
from pipesched.cli.output.terminal import print_result, progress_bar


def profile(
    model: ModelName,
    microbatch_sizes: Annotated[str, typer.Option(help="Samples, as 1,2,4.")] = "1,2,4",
    repeats: Annotated[int, typer.Option(help="Measured runs; their median counts.", min=1)] = 10,
    companions: Annotated[
        int, typer.Option(help="Processes that keep other cores as busy as other ranks would.", min=0, max=1024)
    ] = 0,
    optimizer: Optimizer = "adamw",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the profile: .json.")] = None,
) -> None:
    """Measure seconds and bytes of every layer at several micro-batch sizes.

    Of its weights: an optimizer step, a copy, a copy predicted ahead, and averaging with a reference model.
    """
    check_outputs((out, JSON))
    sizes = _sizes(microbatch_sizes)
    if device == "cuda":
        require_gpu("--device: got cuda", "--device cpu")
    from pipesched import workflows

    with progress_bar("profiling") as tick:
        measured = workflows.profile(
            model,
            sizes,
            repeats=repeats,
            companions=companions,
            optimizer=optimizer,
            dtype=dtype,
            device=device,
            threads=threads,
            seed=seed,
            progress=tick,
        )
    if out is not None:
        measured.save(out)
    if json:
        emit(measured.to_json(), None)
    else:
        print_result(measured.table())


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise InputError(f"--microbatch-sizes: got {text!r}, expected whole numbers of 1 or more; try 1,2,4")
    return sizes
