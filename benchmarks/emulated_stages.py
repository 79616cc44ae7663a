"""The costs of the ranks that benchmarks emulate: stages that are uneven on purpose."""

from __future__ import annotations

from pipesched import Schedule
from pipesched.profiles.costs import StageCost, StageCosts


def uneven_stages(schedule: Schedule, op_s: float, output_bytes: int, weight_bytes: int = 0) -> StageCosts:
    """Return stages whose F, I and W take `op_s` each, in total over the stages of a rank.

    F of stages 1, 4, .. takes 25 % more, and of stages 2, 5, .. 50 % more.
    """
    stage_s = op_s * schedule.num_ranks / schedule.num_stages
    stages = tuple(
        StageCost(
            forward_s=stage_s * (1 + 0.25 * (stage % 3)),
            backward_input_s=stage_s,
            backward_weight_s=stage_s,
            step_s=0.002,
            output_bytes=output_bytes,
            weight_bytes=weight_bytes,
        )
        for stage in range(schedule.num_stages)
    )
    return StageCosts(stages, origin="by hand")
