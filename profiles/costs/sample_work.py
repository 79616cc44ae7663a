"""The work of a training sample, and the rates of a training step that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

from pipesched.profiles import ProfileError
from pipesched.schedules.common import PositiveCount


@dataclass(frozen=True, slots=True)
class TrainingRates:
    """The rates of one GPU in a training step.

    Attributes:
        seconds: Seconds of the step.
        num_samples: Samples of the step, over all GPUs.
        num_gpus: Number of GPUs of all stages and replicas.
        tokens_per_s: Tokens per second.
        flops_per_s: Model FLOPs per second; recomputation does not count.
        utilization: Share of the GPU's peak (MFU), at most 1.
    """

    seconds: float
    num_samples: int
    num_gpus: int
    tokens_per_s: float
    flops_per_s: float
    utilization: float

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample."""
        return round(self.tokens_per_s * self.seconds * self.num_gpus / self.num_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleWork:
    """The work of one sample of a model in training, and the peak of the GPU.

    Attributes:
        tokens: Tokens of a sample.
        flops: Model FLOPs of a sample, forward and backward, with the full square of attention; recomputation does not
            count (PaLM, arXiv:2204.02311, appendix B).
        peak_flops_per_s: Peak of a GPU's dense matrix products in the number type of training.
    """

    tokens: PositiveCount
    flops: Annotated[float, Gt(0), Le(1e30)]
    peak_flops_per_s: Annotated[float, Gt(0), Le(1e24)]

    def rates(self, num_samples: int, seconds: float, num_gpus: int) -> TrainingRates:
        """Return the rates of one GPU.

        Args:
            num_samples: Samples of the step, over all GPUs.
            seconds: Seconds of the step.
            num_gpus: Number of GPUs of all stages and replicas.

        Raises:
            ProfileError: The MFU is above 1.
        """
        samples_per_s = num_samples / seconds / num_gpus
        flops_per_s = self.flops * samples_per_s
        utilization = flops_per_s / self.peak_flops_per_s
        if utilization > 1:
            raise ProfileError(
                f"training rates: got an MFU of {utilization:.3g}, expected at most 1: {num_samples} samples in "
                f"{seconds:.4g} s need {flops_per_s:.4g} FLOP/s on each of {num_gpus} GPUs, and the peak is "
                f"{self.peak_flops_per_s:.4g}; check the seconds and the number of GPUs"
            )
        tokens_per_s = self.tokens * samples_per_s
        return TrainingRates(seconds, num_samples, num_gpus, tokens_per_s, flops_per_s, utilization)
