"""``pipesched profile``: measure a model's layers on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from pipesched.errors import InputError
from pipesched.options import Json, Out, Seed
from pipesched.output import emit, num_bytes, print_table, progress, seconds

Model = Annotated[
    str, typer.Argument(help="gpt, conv, mlp, with arguments as gpt:layers=8,width=320; or module:factory.")
]
Dtype = Annotated[str, typer.Option(help="Of weights and activations, as torch names it.")]
TorchDevice = Annotated[str, typer.Option(help="cpu or cuda.")]
Optimizer = Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")]
Threads = Annotated[int, typer.Option(help="CPU threads per rank.", min=1)]


def profile(
    model: Model,
    microbatch_sizes: Annotated[str, typer.Option(help="Samples, as 1,2,4.")] = "1,2,4",
    repeats: Annotated[int, typer.Option(min=1)] = 10,
    companions: Annotated[int, typer.Option(help="Processes that keep other cores as busy as other ranks would.")] = 0,
    optimizer: Optimizer = "adamw",
    dtype: Dtype = "float32",
    device: TorchDevice = "cpu",
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
) -> None:
    """Measure seconds and bytes of every layer at several micro-batch sizes."""
    from profiles.files import save_profile
    from profiles.models.resolve import resolve_model
    from profiles.profile_json import profile_text
    from profiles.profiler import profile_model

    sizes = _sizes(microbatch_sizes)
    with progress("profiling") as tick:
        measured = profile_model(
            resolve_model(model),
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
    elif out is None or not json:
        largest = measured.microbatch_sizes[-1]
        rows = [
            {
                "layer": f"{index} {layer.name}",
                "forward": seconds(layer.measurements[-1].forward_s),
                "backward": seconds(layer.measurements[-1].backward_s),
                "step": seconds(layer.step_s),
                "weights": num_bytes(layer.weight_bytes),
                "saved": num_bytes(layer.measurements[-1].saved_bytes),
                "output": num_bytes(layer.measurements[-1].output_bytes),
            }
            for index, layer in enumerate(measured.layers)
        ]
        print_table(f"{measured.model}, micro-batches of {largest}", rows, measured.provenance.device)


def torch_dtype(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN201 -- torch is loaded only here
    """Return torch's dtype of that name."""
    import torch

    dtypes = {"float32", "float64", "bfloat16", "float16"}
    if name not in dtypes:
        raise InputError(f"--dtype: got {name!r}, expected one of {', '.join(sorted(dtypes))}")
    return getattr(torch, name)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise InputError(f"--microbatch-sizes: got {text!r}, expected whole numbers of 1 or more, as 1,2,4")
    return sizes
