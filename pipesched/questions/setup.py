"""The settings of a setup, of the predictions under it, and of the search for the fastest order of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from pipesched.profiles import MessagePrecision
from pipesched.schedules.common import MAX_NUMBER, Description
from pipesched.simulator import MAX_JITTER, Buffers, Engine

InputShare: TypeAlias = Annotated[
    float | None,
    Description(
        "Share of B spent on I where the costs have B alone; W gets the rest, and on stage 0 the whole B.",
        least=0.0,
        most=1.0,
        panel="Costs",
    ),
]

ConvertRate: TypeAlias = Annotated[
    float | None,
    Description("Throughput of `compression` on a device in bytes/s (default: free).", least=1.0, panel="Network"),
]

OnShare: TypeAlias = Annotated[
    Callable[[float], None],
    Description("Function that is called with the finished share of the work, 0 to 1.", has_option=False),
]


def unheard(_share: float) -> None:
    """Ignore the finished share of some work."""


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

    tied_bytes: Annotated[
        int | None,
        Description(
            "Gradient bytes of tied embeddings, which the first and the last stage sum before they step: 1GB (default: "
            "none).",
            least=1,
            most=2**63 - 1,
            panel="Costs",
        ),
    ] = None
    compression: Annotated[MessagePrecision | None, Description("Send messages in half precision.")] = None
    convert_bytes_per_s: ConvertRate = None
    jitter: Jitter = 0.0
    seed: JitterSeed = 0
    engine: Annotated[Engine, Description("Engine: simpy is the slower reference engine with the same results.")] = (
        "fast"
    )
    buffers: Annotated[
        Buffers,
        Description(
            "Lifetime of receive buffers: pooled, from the Recv on (our executor); at_use, from the use on (streams of "
            "a GPU); per_microbatch, the whole run (PyTorch)."
        ),
    ] = "pooled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCount:
    """The number of runs with jitter."""

    num_runs: Annotated[
        int,
        Description(
            "Number of runs with `jitter`, for percentiles; seeds are counted from `seed`.",
            least=1,
            most=MAX_NUMBER,
            panel="Network",
        ),
    ] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSettings(RunCount):
    """The settings of a simulation."""

    spread: Annotated[
        int,
        Description(
            "Number of draws of the measured seconds (of a profile, or of costs from runs), for a range of the "
            "makespan; 0: no range.",
            least=0,
            most=MAX_NUMBER,
        ),
    ] = 0
    bound_seconds: Annotated[
        float | None,
        Description(
            "Time limit [s] of the search for a lower bound on the time of any op order in the same memory; 0: simple "
            "bounds alone (default: no bound).",
            least=0.0,
            option="--bound",
        ),
    ] = None
    fit_iteration_s: Annotated[
        float | None,
        Description(
            "Known time of one iteration of this setting [s], to fit a factor on the estimated seconds of its layers.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeSettings:
    """The settings of the search."""

    panel: ClassVar[str] = "Search"

    in_flight: Annotated[
        float | None,
        Description(
            "Largest number of micro-batches in flight on a rank (default: from the memory of the devices, else as in "
            "the schedule).",
            least=0.0,
            most=MAX_NUMBER,
        ),
    ] = None
    is_split: Annotated[bool, Description("Split whole backwards into I and W.")] = False
    is_repeated: Annotated[
        bool, Description("Minimise the time from one batch to the next, for batches without a pause between them.")
    ] = False
    may_recompute: Annotated[
        bool, Description("Let stages keep only their input and recompute the rest, if that is faster overall.")
    ] = False
    seconds: Annotated[float, Description("Time limit of the search [s]; 0: only simple bounds.", least=0.0)] = 20.0
    num_workers: Annotated[
        int | None, Description("Number of threads (default: one per core).", least=1, most=1024)
    ] = None
