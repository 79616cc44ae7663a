"""The settings of the search for the best plan of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pipesched.profiles.costs import AttentionKernel, FitFactor, HidesExperts, MatmulPrecision, MergesCopies
from pipesched.questions.searching import RECOMPUTE_TIMES, Recompute, Workers
from pipesched.schedules.common import MAX_NUMBER, Counts, Description, Names
from pipesched.schedules.transforms import RecomputeWhen

CompressionChoice: TypeAlias = Literal["no", "half", "both"]
TrainerName: TypeAlias = Literal["torchtitan", "megatron", "deepspeed"]


@dataclass(frozen=True, kw_only=True)  # without slots, as settings are joined
class LayoutSettings:
    """The splits of a transformer that is estimated, as llama3-70b, and the numbers of its computation."""

    panel: ClassVar[str] = "Estimate"

    tensor: Annotated[
        Counts | None,
        Description(
            "Tensor parallelism: GPUs that share every matrix, with sequence parallelism (default: any number in a "
            "node).",
            option="--tp",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None
    context: Annotated[
        Counts | None,
        Description(
            "Context parallelism: GPUs that share the tokens of a sample (default: any number with 2,048 tokens each).",
            option="--cp",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None
    expert: Annotated[
        Counts | None,
        Description(
            "Expert parallelism: GPUs that share the experts (default: any number).",
            option="--ep",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None
    zero: Annotated[
        Counts | None,
        Description(
            "Stages of ZeRO to try: 1 shards optimizer states, 2 also gradients, 3 also weights (default: all; 2 only "
            "with one micro-batch).",
            least=0,
            most=3,
        ),
    ] = None
    memory_margin: Annotated[
        float,
        Description(
            "Share of the memory of a GPU that a layout leaves free, for the allocator's reserve and the error of the "
            "estimate.",
            least=0.0,
            most=0.9,
        ),
    ] = 0.1
    precision: Annotated[
        MatmulPrecision, Description("Number type of matrix products; weights and messages stay bfloat16 under float8.")
    ] = "bfloat16"
    attention: Annotated[
        AttentionKernel,
        Description("Kernel of attention: unfused, FlashAttention 1 or 2, or the newest fused kernel of the GPU."),
    ] = "fused"
    merges_copies: MergesCopies = False
    hides_experts: HidesExperts = False
    fit_factor: FitFactor = 1.0


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """The settings of every search for a plan."""

    panel: ClassVar[str] = "Search"

    batch_size: Annotated[int, Description("Samples per optimizer step.", short="-b", least=1, most=MAX_NUMBER)]
    schedules: Annotated[
        Names | None,
        Description(
            "Schedules to try: names, or builders of your own (default: gpipe,1f1b,interleaved,zb_h1; for a "
            "transformer 1f1b,interleaved,zb_h1).",
            short="-s",
        ),
    ] = None
    depths: Annotated[
        Counts | None,
        Description(
            "Ranks per copy of the pipeline (default: any number).", option="--depth", least=1, most=MAX_NUMBER
        ),
    ] = None
    chunks: Annotated[
        Counts | None,
        Description(
            "Stages per rank of schedules with several (default: 2; for a transformer 2,3,4,6,8).",
            short="-v",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None
    recompute: Recompute = "both"
    time_limit_s: Annotated[
        float | None,
        Description(
            "Time limit of the search [s]; the search then returns the best plan so far, once it has one.",
            least=0.0,
            most=1e6,
        ),
    ] = 20.0
    num_workers: Workers = None
    trainer: Annotated[
        TrainerName | None,
        Description(
            "Search only plans that this trainer runs.",
            more="Prints only the best plan, as flags or configuration of the trainer.",
            option="--export",
        ),
    ] = None
    top: Annotated[int, Description("Plans to rank.", least=1, most=1000, panel="Output")] = 10


@dataclass(frozen=True, kw_only=True)
class PlanSettings(PlanLimits):
    """The settings of `plan`."""

    num_devices: Annotated[
        int | None,
        Description("Number of devices (default: all of the cluster).", option="--devices", least=1, most=MAX_NUMBER),
    ] = None
    asynchronous: Annotated[
        bool, Description("Try schedules with stale weights too: pipedream_2bw, wpipe, 1f1b_rr.")
    ] = False
    recompute_when: Annotated[
        RecomputeWhen | None, Description(f"{RECOMPUTE_TIMES}; default: late with `trainer`, else early.")
    ] = None
    compression: Annotated[CompressionChoice, Description("Send activations and gradients in half precision.")] = "no"
    fewer: Annotated[bool, Description("Try layouts that leave devices idle too.")] = False
