"""The all-reduce of a reduction: its bytes by the costs, its members by the lists, its links by the cluster."""

from __future__ import annotations

from pipesched.profiles.clusters import AllReduce, Cluster, all_reduce
from pipesched.profiles.costs.stage_costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Group


def reduction_of(group: Group, schedule: Schedule, costs: StageCosts, cluster: Cluster) -> AllReduce:
    """Return the all-reduce of a group of Reduces.

    The gradients of a stage go over the links between its replicas. A sum of norms takes no time.

    Args:
        group: Group of the Reduces, as in `schedule.summands`.
        schedule: The lists, with the devices of their ranks.
        costs: Bytes of the stages.
        cluster: Devices and links.
    """
    if not isinstance(group, int):
        return AllReduce("ring", ())
    devices = [schedule.rank_to_device[rank] for rank in schedule.reducers[group]]
    return all_reduce(costs.stages[group].weight_bytes, devices, cluster)
