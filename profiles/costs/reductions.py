"""The all-reduce of a reduction: its bytes by the costs, its members by the lists, its links by the cluster."""

from __future__ import annotations

from collections import defaultdict

from pipesched.profiles.clusters import AllReduce, Cluster, all_reduce, all_reduce_rings
from pipesched.profiles.costs.stage_costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Group, Summed


def reduction_of(group: Group, schedule: Schedule, costs: StageCosts, cluster: Cluster) -> AllReduce:
    """Return the all-reduce of a group of Reduces.

    The gradients of a stage go over the links between its replicas. Tied gradients go around the i-th replicas of the
    tied stages, all rings at once. A sum of norms takes no time.

    Args:
        group: Group of the Reduces, as in `schedule.summands`.
        schedule: The lists, with the devices of their ranks.
        costs: Bytes of the stages.
        cluster: Devices and links.
    """
    if group is Summed.TIED:
        return all_reduce_rings(costs.tied_bytes, tied_rings(schedule), cluster)
    if not isinstance(group, int):
        return AllReduce("ring", ())
    return all_reduce(
        costs.stages[group].weight_bytes, [schedule.rank_to_device[rank] for rank in schedule.reducers[group]], cluster
    )


def tied_rings(schedule: Schedule) -> list[tuple[int, ...]]:
    """Return the devices of the i-th replicas of all tied stages, each once; empty without tied stages."""
    devices: defaultdict[int, list[int]] = defaultdict(list)
    for rank, stage in sorted(schedule.summands.get(Summed.TIED, ())):
        devices[stage].append(schedule.rank_to_device[rank])
    return [tuple(dict.fromkeys(ring)) for ring in zip(*(devices[stage] for stage in sorted(devices)), strict=False)]
