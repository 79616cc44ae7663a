"""The settings of a sweep: the values to combine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipesched.questions.searching import Recompute, RecomputeTime, SearchSettings, StepBarrier
from pipesched.questions.setup import RunCount
from pipesched.schedules.common import MAX_NUMBER, Counts, Description


@dataclass(frozen=True, kw_only=True)
class SweepSettings(SearchSettings, RunCount):
    """The settings of a sweep."""

    panel: ClassVar[str] = "Schedule"

    num_ranks: Annotated[Counts, Description("Ranks of the pipeline.", short="-p", least=1, most=MAX_NUMBER)]
    num_microbatches: Annotated[Counts, Description("Micro-batches.", short="-m", least=1, most=MAX_NUMBER)]
    num_chunks: Annotated[
        Counts | None,
        Description(
            "Stages per rank, for schedules with this parameter (default: the usual number of each schedule).",
            short="-v",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None
    recompute: Recompute = "no"
    recompute_when: RecomputeTime = None
    step_barrier: StepBarrier = False
    microbatch_sizes: Annotated[
        Counts | None,
        Description(
            "Samples per micro-batch; needs a profile (default: the smallest measured size).", least=1, most=MAX_NUMBER
        ),
    ] = None
    where: Annotated[
        str | None, Description("Condition for the settings to keep: 'm % p == 0 and p * v in (8, 16)'.")
    ] = None
    by: Annotated[
        str | None,
        Description(
            "Measure by which the settings are sorted (default: s_per_sample with a profile, else s_per_microbatch).",
            panel="Search",
        ),
    ] = None
    is_steady: Annotated[
        bool,
        Description(
            "Simulate longer runs if one batch does not show its steady-state time.",
            option="--no-steady",
            turned_off="Do not simulate longer runs if one batch does not show its steady-state time.",
            panel="Search",
        ),
    ] = True
