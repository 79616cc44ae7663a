"""The settings of a measurement of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerSettings:
    """The settings of a measurement.

    Attributes:
        microbatch_sizes: Samples; the profile covers sizes from the smallest to the largest.
        repeats: Measured runs of a layer; equal layers of a chain share them.
        warmup: Runs before them.
        optimizer: A name in `OPTIMIZERS`.
        dtype: Name of the data type of weights and activations.
        device: Device of the measurement.
        threads: Threads of one operation on the CPU, here and in each companion.
        companions: Background processes that run the model meanwhile, one for each further rank on this machine.
        seed: Seed of weights and data.
        splits: Whether to measure I and W too, which is half of the work; schedules with a whole backward need neither.
    """

    microbatch_sizes: Sequence[int]
    repeats: int = 10
    warmup: int = 3
    optimizer: str = "adamw"
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    companions: int = 0
    seed: int = 0
    splits: bool = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """The micro-batch sizes, ascending."""
        return tuple(sorted(set(self.microbatch_sizes)))
