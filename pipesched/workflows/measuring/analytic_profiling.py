"""Estimate the layers of a model on a GPU that is not available."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from pipesched.profiles import Dtype, OptimizerName, ProfileError
from pipesched.profiles.clusters import Gpu
from pipesched.profiles.costs import GptExecution, GptShape, gpt_profile
from pipesched.profiles.io import gpu_names, load_gpu, read_arguments
from pipesched.schedules.formats import suffix_of
from pipesched.workflows import (
    ArgumentError,
    require_at_least,
    require_choice,
    require_each_at_least,
    require_flag,
    require_kind,
    require_rate,
    whole_attention,
)
from pipesched.workflows.measuring.profile_result import ProfileMeasurement

_MOST_SAMPLES = 2**31 - 1
"""Most samples of a micro-batch that a file holds."""


def analytic_profile(
    model: str,
    gpu: str | Path | Gpu,
    microbatch_sizes: Sequence[int] = (1, 2, 4),
    *,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    selective_recompute: bool = False,
    flash_attention: bool = False,
    optimizer: OptimizerName = "adamw",
    dtype: Dtype = "float32",
    efficiency: float | None = None,
) -> ProfileMeasurement:
    """Estimate seconds and bytes of every layer of a GPT from FLOPs, bytes, and the data sheet of a GPU.

    An operation takes the longer of its times for FLOPs and for bytes. The layers are as in Megatron-LM, with
    dropout. The costs are of one GPU; a device of a pipeline is the group of GPUs that share its layers.

    Args:
        model: ``gpt``, with arguments as in ``gpt:layers=96,width=12288,heads=96,context=2048,vocab=51200``.
        gpu: ``v100``, ``a100``, ``a100-40gb``, ``h100``, ``h200``, ``b200``, ``a10``, ``l4``, ``l40s``, a file
            (.json), or a Gpu.
        microbatch_sizes: Samples; costs are known from the smallest to the largest.
        tensor_parallel: GPUs that share every layer, over the links of a node.
        sequence_parallel: Whether they also share the activations between products of matrices, and the messages.
        selective_recompute: Whether attention is recomputed for its backward, and keeps nothing.
        flash_attention: Whether attention is FlashAttention. Otherwise it writes its whole matrix, and keeps the matrix
            unless attention is recomputed.
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``.
        dtype: Data type of weights and activations; with types smaller than ``float32``, a ``float32`` copy of the
            weights is kept.
        efficiency: Share of its peak that the GPU reaches in products of matrices; None: as measured for the GPU.

    Raises:
        ArgumentError: An argument makes no sense, or the GPUs cannot share the layers.
        ProfileError: The GPT does not exist.
    """
    require_kind("model", model, str, "the name of a GPT; try gpt:layers=8,width=320")
    if not isinstance(gpu, Gpu):
        if not isinstance(gpu, str | Path) or suffix_of(gpu) != ".json":
            gpu = gpu.lower() if isinstance(gpu, str) else gpu
            require_choice("gpu", gpu, (*gpu_names(), "a file (.json)"))
        gpu = load_gpu(gpu)
    require_each_at_least("microbatch_sizes", microbatch_sizes, 1)
    if max(microbatch_sizes) > _MOST_SAMPLES:
        raise ArgumentError(f"microbatch_sizes: got {max(microbatch_sizes)}, expected at most {_MOST_SAMPLES}")
    require_at_least("tensor_parallel", tensor_parallel, 1)
    require_flag("sequence_parallel", sequence_parallel)
    require_flag("selective_recompute", selective_recompute)
    require_flag("flash_attention", flash_attention)
    if flash_attention and selective_recompute:
        raise ArgumentError(
            "flash_attention: got it with `selective_recompute`, expected one of them, as it keeps no matrix that "
            "could be computed again; leave one out"
        )
    require_choice("optimizer", optimizer, get_args(OptimizerName))
    require_choice("dtype", dtype, gpu.flops_per_s)
    if efficiency is not None:
        require_rate("efficiency", efficiency)
        if efficiency > 1:
            raise ArgumentError(f"efficiency: got {efficiency}, expected a share of the peak, at most 1; try 0.5")
    shape = _shape(model)
    _require_shared(shape, tensor_parallel, sequence_parallel)
    execution = GptExecution(
        dtype=dtype,
        tensor_parallel=tensor_parallel,
        sequence_parallel=sequence_parallel,
        selective_recompute=selective_recompute,
        flash_attention=flash_attention,
    )
    sizes = sorted(set(microbatch_sizes))
    estimate = gpt_profile(shape, gpu, sizes, execution, optimizer, efficiency)
    return ProfileMeasurement(estimate, tuple(whole_attention(estimate)))


def _shape(model: str) -> GptShape:
    name, _, rest = model.partition(":")
    if name != "gpt":
        raise ProfileError(
            f"model {model!r}: got another than gpt, expected gpt with its arguments: no other is known without a "
            "measurement; try gpt:layers=8,width=320"
        )
    shape = GptShape(**read_arguments(model, GptShape, rest))
    shape.require_possible(repr(model))
    return shape


def _require_shared(shape: GptShape, tensor_parallel: int, sequence_parallel: bool) -> None:
    if sequence_parallel and tensor_parallel == 1:
        raise ArgumentError(
            "sequence_parallel: got it with one GPU for a layer, expected more; try `tensor_parallel=2`"
        )
    for name in ("heads", "vocab", *(["context"] if sequence_parallel else [])):
        got = getattr(shape, name)
        if got % tensor_parallel:
            raise ArgumentError(
                f"tensor_parallel: got {tensor_parallel}, expected a divisor of {name}={got}; "
                f"try a model with {name}={-(-got // tensor_parallel) * tensor_parallel}"
            )
