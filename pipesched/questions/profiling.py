"""The settings of a profile, measured or estimated for a GPU, and of a measurement of links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from pipesched.executor import LayerSettings
from pipesched.profiles import Carrier, OptimizerName
from pipesched.profiles.costs import LayerSharding
from pipesched.schedules.common import MAX_NUMBER, Counts, Description, values_of

ProfiledSizes: TypeAlias = Annotated[
    Counts | None,
    Description(
        "Samples per micro-batch (default: 1,2,4), from the smallest to the largest; for a table of layers: further "
        "sizes, with costs in proportion.",
        least=1,
        most=2**31 - 1,
        panel="Run",
    ),
]
USUAL_SIZES = (1, 2, 4)
"""Samples of the micro-batches of a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings(LayerSettings):
    """The settings of a measured profile."""

    panel: ClassVar[str] = "Run"

    repeats: Annotated[
        int,
        Description(
            "Measured runs of each layer; equal layers share them, and the median counts.", least=1, most=MAX_NUMBER
        ),
    ] = 10
    warmup: Annotated[
        int, Description("Runs of each layer before the measured runs.", least=1, most=MAX_NUMBER, has_option=False)
    ] = 3
    passes: Annotated[
        int,
        Description(
            "Repetitions of the whole measurement, so that a slow moment of the machine does not distort one layer; "
            "each number is the median of the passes.",
            least=1,
            most=MAX_NUMBER,
            has_option=False,
        ),
    ] = 1
    companions: Annotated[
        int,
        Description("Number of processes that keep other cores busy, as other ranks of a run do.", least=0, most=1024),
    ] = 0
    pipelines: Annotated[
        int,
        Description(
            "Largest number of parallel pipelines; above 1, the slowdown of a shared core is measured too.",
            short="-n",
            least=1,
            most=256,
        ),
    ] = 1
    splits: Annotated[
        bool,
        Description(
            "Whether to measure the two halves of the backward too, which only some schedules need.", has_option=False
        ),
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSettings(LayerSharding):
    """The settings of an estimated profile."""

    optimizer: Annotated[
        OptimizerName, Description("Optimizer from torch.optim; its states are float32.", panel="Estimate")
    ] = "adamw"

    @property
    def sharding(self) -> LayerSharding:
        """The split of the layers alone."""
        return LayerSharding(**values_of(self, LayerSharding))


NumRanks: TypeAlias = Annotated[
    int,
    Description(
        "Number of ranks to start on this machine, one process each.",
        option="--ranks",
        short="-p",
        least=2,
        most=MAX_NUMBER,
    ),
]


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """The settings of a measurement of links."""

    backend: Annotated[Carrier, Description("Carrier of the messages: gloo, or nccl with a GPU per rank.")] = "gloo"
    repeats: Annotated[int, Description("Measurements of each size; the median counts.", least=1, most=MAX_NUMBER)] = 20
