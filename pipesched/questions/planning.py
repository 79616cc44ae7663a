"""The settings of the search for the best plan of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pipesched.questions.searching import RECOMPUTE_TIMES, Recompute, Workers
from pipesched.schedules.common import MAX_NUMBER, Counts, Description, Names
from pipesched.schedules.transforms import RecomputeWhen

CompressionChoice: TypeAlias = Literal["no", "half", "both"]
TrainerName: TypeAlias = Literal["torchtitan", "megatron", "deepspeed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """The settings of `plan`."""

    panel: ClassVar[str] = "Search"

    batch_size: Annotated[int, Description("Samples per optimizer step.", short="-b", least=1, most=MAX_NUMBER)]
    num_devices: Annotated[
        int | None,
        Description("Number of devices (default: all of the cluster).", option="--devices", least=1, most=MAX_NUMBER),
    ] = None
    schedules: Annotated[
        Names | None,
        Description(
            "Schedules to try: names, or builders of your own (default: gpipe,1f1b,interleaved,zb_h1).", short="-s"
        ),
    ] = None
    asynchronous: Annotated[
        bool, Description("Try schedules with stale weights too: pipedream_2bw, wpipe, 1f1b_rr.")
    ] = False
    depths: Annotated[
        Counts | None,
        Description("Ranks per copy of the pipeline (default: any).", option="--depth", least=1, most=MAX_NUMBER),
    ] = None
    chunks: Annotated[
        Counts, Description("Stages per rank of schedules with several.", short="-v", least=1, most=MAX_NUMBER)
    ] = (2,)
    recompute: Recompute = "both"
    recompute_when: Annotated[
        RecomputeWhen | None, Description(f"{RECOMPUTE_TIMES}; default: late with `trainer`, else early.")
    ] = None
    compression: Annotated[CompressionChoice, Description("Send activations and gradients in half precision.")] = "no"
    fewer: Annotated[bool, Description("Try layouts that leave devices idle too.")] = False
    time_limit_s: Annotated[
        float | None,
        Description(
            "Time limit of the search [s], which ends with the best plan so far, once it has one.", least=0.0, most=1e6
        ),
    ] = 20.0
    num_workers: Workers = None
    trainer: Annotated[
        TrainerName | None,
        Description(
            "Search only plans that this trainer runs.",
            more="The best is printed alone, as flags or configuration.",
            option="--export",
        ),
    ] = None
    top: Annotated[int, Description("Plans to rank.", least=1, most=1000, panel="Output")] = 10
