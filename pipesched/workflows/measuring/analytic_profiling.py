"""Estimate the layers of a model on a GPU that is not available."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipesched.executor import NumberSettings
from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Gpu
from pipesched.profiles.costs import GptExecution, GptShape, gpt_profile
from pipesched.profiles.io import gpu_names, load_gpu, read_arguments
from pipesched.questions import USUAL_SIZES, EstimateSettings, ProfiledSizes
from pipesched.schedules.common import tuple_of
from pipesched.schedules.formats import suffix_of
from pipesched.workflows import (
    ArgumentError,
    asks,
    require_choice,
    require_kind,
    require_rate,
    require_settings,
    whole_attention,
)
from pipesched.workflows.measuring.profile_result import ProfileMeasurement


@dataclass(frozen=True)
class AnalyticQuestion(NumberSettings, EstimateSettings):
    """The question of `analytic_profile`; its fields are the arguments of that function."""

    model: str
    gpu: str | Path | Gpu
    microbatch_sizes: ProfiledSizes = None

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require_kind("model", self.model, str, "the name of a GPT; try gpt:layers=8,width=320")
        require_settings(self)
        if self.flash_attention and self.selective_recompute:
            raise ArgumentError(
                "flash_attention: got it with `selective_recompute`, expected one of them, as it keeps no matrix that "
                "could be computed again; leave one out"
            )
        if self.efficiency is not None:
            require_rate("efficiency", self.efficiency)
            if self.efficiency > 1:
                raise ArgumentError(
                    f"efficiency: got {self.efficiency}, expected a share of the peak, at most 1; try 0.5"
                )


@asks(AnalyticQuestion)
def analytic_profile(question: AnalyticQuestion) -> ProfileMeasurement:
    """Estimate seconds and bytes of every layer of a GPT from FLOPs, bytes, and the data sheet of a GPU.

    An operation takes the longer of its times for FLOPs and for bytes. The layers are as in Megatron-LM, with
    dropout. The costs are of one GPU; a device of a pipeline is the group of GPUs that share its layers.

    Args:
        model: ``gpt``, with arguments as in ``gpt:layers=96,width=12288,heads=96,context=2048,vocab=51200``.
        gpu: ``v100``, ``a100``, ``a100-40gb``, ``h100``, ``h200``, ``b200``, ``a10``, ``l4``, ``l40s``, a file
            (.json), or a Gpu.

    Raises:
        ArgumentError: An argument makes no sense, or the GPUs cannot share the layers.
        ProfileError: The GPT does not exist.
    """
    gpu = question.gpu
    if not isinstance(gpu, Gpu):
        if not isinstance(gpu, str | Path) or suffix_of(gpu) != ".json":
            gpu = gpu.lower() if isinstance(gpu, str) else gpu
            require_choice("gpu", gpu, (*gpu_names(), "a file (.json)"))
        gpu = load_gpu(gpu)
    require_choice("dtype", question.dtype, gpu.flops_per_s)
    shape = _shape(question.model)
    _require_shared(shape, question.tensor_parallel, question.sequence_parallel)
    execution = GptExecution(
        dtype=question.dtype,
        tensor_parallel=question.tensor_parallel,
        sequence_parallel=question.sequence_parallel,
        selective_recompute=question.selective_recompute,
        flash_attention=question.flash_attention,
    )
    sizes = sorted(set(tuple_of(question.microbatch_sizes or USUAL_SIZES)))
    estimate = gpt_profile(shape, gpu, sizes, execution, question.optimizer, question.efficiency)
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
