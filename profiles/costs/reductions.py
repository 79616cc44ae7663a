"""The all-reduce of a reduction: its bytes by the costs, its members by the lists, its links by the cluster."""

from __future__ import annotations

from pipesched.profiles.clusters import AllReduce, Cluster, Hop, all_reduce, all_reduce_pairs
from pipesched.profiles.costs.stage_costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Group, Summed


def reduction_of(group: Group, schedule: Schedule, costs: StageCosts, cluster: Cluster) -> AllReduce:
    """Return the all-reduce of a group of Reduces.

    The gradients of a stage go over the links between its replicas. Tied gradients go between the i-th replica of the
    first stage and the i-th of the last, all pairs at once. A sum of norms takes no time.

    Args:
        group: Group of the Reduces, as in `schedule.summands`.
        schedule: The lists, with the devices of their ranks.
        costs: Bytes of the stages.
        cluster: Devices and links.
    """
    if group is Summed.TIED:
        return all_reduce_pairs(costs.tied_bytes, tied_pairs(schedule), cluster)
    if not isinstance(group, int):
        return AllReduce("ring", ())
    return all_reduce(
        costs.stages[group].weight_bytes, [schedule.rank_to_device[rank] for rank in schedule.reducers[group]], cluster
    )


def tied_pairs(schedule: Schedule) -> list[Hop]:
    """Return the devices of the i-th replicas of the first and of the last stage; empty if they are not tied."""
    places, ends = sorted(schedule.summands.get(Summed.TIED, ())), (0, schedule.num_stages - 1)
    firsts, lasts = ([schedule.rank_to_device[rank] for rank, stage in places if stage == end] for end in ends)
    return [*zip(firsts, lasts, strict=False)]
