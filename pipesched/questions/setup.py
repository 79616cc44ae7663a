"""The settings of a setup: the conditions under which a schedule is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from pipesched.profiles import MessagePrecision
from pipesched.schedules.common import Description
from pipesched.simulator import MAX_JITTER, Buffers, Engine

InputShare: TypeAlias = Annotated[
    float | None,
    Description(
        "Share of B spent on I where the costs have B alone; W gets the rest, and all B of stage 0.",
        least=0.0,
        most=1.0,
        panel="Costs",
    ),
]

ConvertRate: TypeAlias = Annotated[
    float | None,
    Description("Throughput of `compression` on a device in bytes/s (default: free).", least=1.0, panel="Network"),
]

LayerCut: TypeAlias = Annotated[
    str | Sequence[int] | None,
    Description(
        "Cut of the layers into stages: balanced (the fastest cut found that fits; default), uniform, counts "
        "as 3,3,4, or Megatron-LM's layout, Ettt|ttt|tttL.",
        panel="Costs",
    ),
]

Jitter: TypeAlias = Annotated[
    float,
    Description(
        "Sigma of a log-normal factor on the seconds of every op.", least=0.0, most=MAX_JITTER, panel="Network"
    ),
]
JitterSeed: TypeAlias = Annotated[int, Description("Seed of the jitter.", least=0, most=2**63 - 1, panel="Network")]


@dataclass(frozen=True, kw_only=True)  # without slots, as two of them are joined
class CutSettings:
    """The use of a model's layers: micro-batches, and the cut into stages."""

    panel: ClassVar[str] = "Costs"

    partition: LayerCut = None
    microbatch_size: Annotated[
        int | None, Description("Samples per micro-batch of a model.", least=1, most=2**31 - 1)
    ] = None

    @property
    def partition_text(self) -> str | None:
        """The cut as a text, or None if none is given."""
        assert self.partition is None or isinstance(self.partition, str), "a Setup and the command line have a text"
        return self.partition


@dataclass(frozen=True, kw_only=True)  # without slots, as two of them are joined
class CostSettings(CutSettings):
    """The use of costs of layers: micro-batches, the cut into stages, and the split of the backward."""

    input_share: InputShare = None


@dataclass(frozen=True, kw_only=True)  # without slots, as two of them are joined
class PredictionSettings:
    """The assumptions of a prediction besides costs and machines."""

    panel: ClassVar[str] = "Network"

    compression: Annotated[MessagePrecision | None, Description("Send messages in half precision.")] = None
    convert_bytes_per_s: ConvertRate = None
    jitter: Jitter = 0.0
    seed: JitterSeed = 0
    engine: Annotated[Engine, Description("Engine: simpy is the reference, with the same results, and slower.")] = (
        "fast"
    )
    buffers: Annotated[
        Buffers,
        Description(
            "Receive buffers: pooled, from the Recv on, as in our executor; at_use, as on the streams of a GPU; "
            "per_microbatch, all the time, as in PyTorch."
        ),
    ] = "pooled"
