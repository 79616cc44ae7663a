"""The bubble of a long run: the idle share when warm-up and cool-down no longer count."""

from __future__ import annotations

import math

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Step, stages_of


def steady_bubble_fraction(
    busy_s: float, schedule: Schedule, costs: StageCosts, cluster: Cluster, steady_s_per_microbatch: float | None
) -> float | None:
    """Return the idle share of all device time at a steady pace; None where the pace is not known.

    What a micro-batch takes of the devices in the long run is its part of what the lists take; a Step that they leave
    to their caller counts.

    Args:
        busy_s: Seconds in which the devices compute in one run of the lists, all of them together.
        schedule: The lists.
        costs: What they cost.
        cluster: The machines.
        steady_s_per_microbatch: Seconds of a micro-batch in the long run (`simulator.fast.steady_state`).
    """
    if not steady_s_per_microbatch:
        return None
    if not any(isinstance(op, Step) for row in schedule.ops for op in row):
        busy_s += math.fsum(
            costs.stages[stage].step_s / cluster.devices[device].speed
            for row, device in zip(schedule.ops, schedule.rank_to_device, strict=True)
            for stage in stages_of(row)
        )
    return idle_share(busy_s, schedule, steady_s_per_microbatch)


def idle_share(busy_s: float, schedule: Schedule, steady_s_per_microbatch: float) -> float:
    """Return the idle share of all device time at a steady pace.

    Args:
        busy_s: Seconds in which the devices compute in one run of the lists, steps in it, all of them together.
        schedule: The lists.
        steady_s_per_microbatch: Seconds of a micro-batch in the long run.
    """
    all_s = schedule.num_devices * schedule.num_microbatches * steady_s_per_microbatch
    return max(0.0, 1 - busy_s / all_s)
