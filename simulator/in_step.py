"""Equal pipelines on the same devices, predicted from one of them, as long as they are in step.

They are in an iteration that all begin together, and where nobody is slowed; else see `simulator.side_by_side`. All
N pipelines have the same lists and costs, and nothing tells them apart. So each op of one runs beside the same op of
all others, and is slowed as far as N of them want more than the device; each message shares its link with N - 1
that are just as long. That makes one pipeline with a device and a link for itself, on which

    an op takes max(1, N u) times its seconds, u being its utilisation,
    a message takes N times its bytes over the bandwidth,

and its longest path is the Timeline that `simulate` gives every pipeline. Each device holds N times what the one
pipeline does, and the reference model once. A shared NIC would tell pipelines apart: it takes messages in turn.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.cluster import Cluster, Link
from profiles.stage_costs import StageCost, StageCosts
from schedules.schedule import Schedule
from schedules.timeline import Timeline
from simulator.longest_path import longest_path
from simulator.memory import memory


def in_step(schedule: Schedule, costs: StageCosts, cluster: Cluster, num_pipelines: int) -> Timeline:
    """Predict one of `num_pipelines` equal pipelines, with the memory that all of them hold.

    Args:
        schedule: Of one pipeline, lowered, a device for every rank.
        costs: As they are for one op alone.
        cluster: Without shared NICs.
        num_pipelines: At least 1.

    Raises:
        As `longest_path` does.
    """
    slowed = replace(costs, stages=tuple(_slowed(cost, num_pipelines) for cost in costs.stages))
    timeline = longest_path(schedule, slowed, _divided(cluster, num_pipelines))
    return replace(timeline, memory=memory(timeline, costs, schedule, num_pipelines=num_pipelines))


def _slowed(cost: StageCost, num_pipelines: int) -> StageCost:
    factor = max(1.0, num_pipelines * cost.utilisation)
    return replace(
        cost,
        forward_s=cost.forward_s * factor,
        backward_s=_times(cost.backward_s, factor),
        backward_input_s=_times(cost.backward_input_s, factor),
        backward_weight_s=_times(cost.backward_weight_s, factor),
        step_s=cost.step_s * factor,
        copy_s=cost.copy_s * factor,
        predict_s=_times(cost.predict_s, factor),
        average_s=cost.average_s * factor,
    )


def _times(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor


def _divided(cluster: Cluster, num_pipelines: int) -> Cluster:
    def share(link: Link) -> Link:
        return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / num_pipelines)

    return replace(
        cluster,
        intra=share(cluster.intra),
        inter=None if cluster.inter is None else share(cluster.inter),
        loopback=share(cluster.loopback),
        links=tuple((source, target, share(link)) for source, target, link in cluster.links),
    )
