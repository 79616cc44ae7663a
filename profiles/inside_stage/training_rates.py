"""The rates of a training step: tokens per second, FLOP/s and model FLOPs utilization (MFU) of one GPU."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.profiles import ProfileError
from pipesched.profiles.inside_stage.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class TrainingRates:
    """The rates of one GPU in a training step.

    Attributes:
        tokens_per_s: Tokens per second.
        flops_per_s: Model FLOPs per second, as `ModelShape.flops_per_token` counts them; recomputation does not count.
        utilization: Share of the GPU's peak (MFU), at most 1.
    """

    tokens_per_s: float
    flops_per_s: float
    utilization: float


def training_rates(
    shape: ModelShape,
    num_samples: int,
    seconds: float,
    num_gpus: int,
    peak_flops_per_s: float,
    *,
    halves_attention: bool = False,
) -> TrainingRates:
    """Return the rates of one GPU.

    Args:
        shape: The model.
        num_samples: Samples of the step, over all GPUs.
        seconds: Seconds of the step.
        num_gpus: Number of GPUs of all stages and replicas.
        peak_flops_per_s: Peak of a GPU's dense matrix products in the number type of training.
        halves_attention: Count half of the square of attention, as recent Megatron-LM and Megatron-Bridge do.

    Raises:
        ProfileError: The MFU is above 1.
    """
    tokens_per_s = num_samples * shape.sequence / seconds / num_gpus
    flops_per_s = shape.flops_per_token(halves_attention=halves_attention) * tokens_per_s
    utilization = flops_per_s / peak_flops_per_s
    if utilization > 1:
        raise ProfileError(
            f"model {shape.name!r}: got an MFU of {utilization:.3g}, expected at most 1: {num_samples} samples in "
            f"{seconds:.4g} s need {flops_per_s:.4g} FLOP/s on each of {num_gpus} GPUs, and the peak is "
            f"{peak_flops_per_s:.4g}; check the seconds and the number of GPUs"
        )
    return TrainingRates(tokens_per_s, flops_per_s, utilization)
