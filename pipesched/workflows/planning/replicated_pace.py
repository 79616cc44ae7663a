"""The simulated time per micro-batch of stages with replicas, and of plain data parallelism on the same devices."""

from __future__ import annotations

import math
from contextlib import suppress

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Profile, costs_of_stages
from pipesched.profiles.partitioning import PartitionedStages
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import build
from pipesched.simulator import SimulationError
from pipesched.simulator.planner import Candidate, predict_candidate
from pipesched.workflows.simulating import Setup, simulate

_MOST_OPS = 4096
"""Most devices times micro-batches of a round for a simulated partition; more would take longer than some seconds."""


def simulated_times(
    profile: Profile, partitioned: PartitionedStages, size: int, cluster: Cluster
) -> tuple[float | None, float | None]:
    """Return the times per micro-batch of stages with replicas under 1F1B-RR and of plain data parallelism [s].

    Ranks take the devices in order. The time of 1F1B-RR is the steady-state time. A step of data parallelism is one
    micro-batch on each device, which has all layers, and the sum of all gradients over all devices. A time is None if
    it cannot be predicted, or not within seconds.

    Args:
        profile: Profile of the model.
        partitioned: Stages and their replicas.
        size: Samples of a micro-batch.
        cluster: Machines.
    """
    replicas = tuple(stage.replicas for stage in partitioned.stages)
    num_devices, round_size = sum(replicas), math.lcm(*replicas)
    if num_devices * max(num_devices, round_size) > _MOST_OPS:
        return None, None
    ordered = profile if profile.graph is None else profile.in_order(partitioned.order)
    bounds = tuple((stage.first, stage.last) for stage in partitioned.stages)
    plain = Candidate("gpipe", 1, num_devices, 1, size, (len(profile.layers),))
    own_s = plain_s = None
    with suppress(ProfileError, ScheduleError, SimulationError):
        num_microbatches = round_size * math.ceil(2 * num_devices / round_size)
        lists = build("1f1b_rr", num_devices, num_microbatches, replicas=replicas)
        own_s = simulate(lists, Setup(costs_of_stages(ordered, bounds, size), cluster)).steady_s_per_microbatch
        plain_s = predict_candidate(plain, costs_of_stages(ordered, plain.bounds, size), cluster).seconds / num_devices
    return own_s, plain_s
