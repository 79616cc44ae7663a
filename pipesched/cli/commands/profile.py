"""``pipesched profile``: measure a model's layers on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.schedule_options import Json, Seed, out_option
from pipesched.cli.options.torch_options import (
    DeviceOption,
    Dtype,
    ModelName,
    Optimizer,
    Threads,
    load_model,
    require_gpu,
    torch_dtype,
)
from pipesched.cli.output.output_files import JSON, check_outputs, emit
from pipesched.cli.output.terminal import num_bytes, print_table, progress_bar, seconds


def profile(
    model: ModelName,
    microbatch_sizes: Annotated[str, typer.Option(help="Samples, as 1,2,4.")] = "1,2,4",
    repeats: Annotated[int, typer.Option(help="Measured runs; their median counts.", min=1)] = 10,
    companions: Annotated[
        int, typer.Option(help="Processes that keep other cores as busy as other ranks would.", min=0, max=1024)
    ] = 0,
    optimizer: Optimizer = "adamw",
    dtype: Dtype = "float32",
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
    from pipesched.profiles.io import profile_text, save_profile
    from pipesched.profiles.measuring import profile_model

    with progress_bar("profiling") as tick:
        measured = profile_model(
            load_model(model),
            microbatch_sizes=sizes,
            repeats=repeats,
            companions=companions,
            optimizer=optimizer,
            dtype=torch_dtype(dtype),
            device=device,
            threads=threads,
            seed=seed,
            progress=lambda done, total, text: tick(done / total),  # noqa: ARG005
        )
    if out is not None:
        save_profile(measured, out)
    if json:
        emit(profile_text(measured, "the profile"), None)
        return
    rows = [
        {
            "layer": f"{index} {layer.name}",
            "forward": seconds(layer.measurements[-1].forward_s),
            "backward": seconds(layer.measurements[-1].backward_s),
            "step": seconds(layer.step_s),
            "copy": "-" if layer.work is None else seconds(layer.work.copy_s),
            "predict": "-" if layer.work is None else seconds(layer.work.predict_s),
            "average": "-" if layer.work is None else seconds(layer.work.average_s),
            "weights": num_bytes(layer.weight_bytes),
            "saved": num_bytes(layer.measurements[-1].saved_bytes),
            "output": num_bytes(layer.measurements[-1].output_bytes),
        }
        for index, layer in enumerate(measured.layers)
    ]
    print_table(f"{measured.model}, micro-batches of {measured.microbatch_sizes[-1]}", rows, measured.provenance.device)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise InputError(f"--microbatch-sizes: got {text!r}, expected whole numbers of 1 or more; try 1,2,4")
    return sizes
