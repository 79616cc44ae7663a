"""The settings that searches share: recomputation, processes, and the file to continue from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pipesched.schedules.common import Description
from pipesched.schedules.transforms import RecomputeWhen

RecomputeChoice: TypeAlias = Literal["no", "yes", "both"]
Recompute: TypeAlias = Annotated[RecomputeChoice, Description("Recompute activations from the input of each stage.")]
RECOMPUTE_TIMES = (
    "Recompute before the gradient has arrived (early), or inside the backward as Megatron-LM, DeepSpeed and "
    "torchtitan do (late)"
)
RecomputeTime: TypeAlias = Annotated[RecomputeWhen | None, Description(f"{RECOMPUTE_TIMES}; default: early.")]
StepBarrier: TypeAlias = Annotated[
    bool, Description("Step after the backwards of all stages, as gradient clipping and loss scaling require.")
]

Workers: TypeAlias = Annotated[
    int | None,
    Description("Number of processes (default: one per core if this is faster).", least=1, most=1024, panel="Search"),
]


@dataclass(frozen=True, kw_only=True)  # without slots, as two of them are joined
class SearchSettings:
    """The machines of a search, and its journal."""

    num_workers: Workers = None
    ray: Annotated[
        str | None,
        Description("Ray cluster to search on, in place of `num_workers`: its address, or local.", panel="Search"),
    ] = None
    resume: Annotated[
        str | Path | None,
        Description("Journal of the search; a stopped search continues from it.", panel="Search"),
    ] = None
