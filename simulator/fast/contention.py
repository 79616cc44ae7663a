"""Contention: whether anything in a simulation is shared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from pipesched.profiles.clusters import Cluster, possible_hops
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Op, Recv, Reduce, Send
from pipesched.simulator import Scenario, is_usual


def contention_of(scenario: Scenario) -> str | None:
    """Return the reason why one pipeline of a scenario does not represent all, or None if it does."""
    schedule, nics, network = scenario.schedule, scenario.cluster.nics, scenario.network
    if schedule.num_devices < schedule.num_ranks:
        return (
            f"{schedule.name}: got {schedule.num_ranks} ranks on {schedule.num_devices} devices, expected a device for "
            "each rank; try simulate"
        )
    if scenario.num_pipelines == 1 or (not nics and is_usual(network)):
        return None
    return (
        f"{schedule.name}: got {scenario.num_pipelines} pipelines with {len(nics)} shared NICs, {network.protocol} "
        f"messages, {network.sends} sends and a slowdown of {network.slowdown:g}, expected no such NIC, rendezvous, "
        "posted ones and none; try simulate"
    )


def is_unshared(schedule: Schedule, cluster: Cluster) -> bool:
    """Whether nothing is shared, so that times follow from the lists alone.

    Every rank has a device of its own, and every device a NIC. A link that a reduction needs is used in one order only:
    both ends post messages and reductions alike, and where more than two ranks reduce there are no messages.
    """
    return schedule.num_devices == schedule.num_ranks and not cluster.nics and _has_ordered_rings(schedule, cluster)


def _has_ordered_rings(schedule: Schedule, cluster: Cluster) -> bool:
    members = schedule.reducers
    rank_of = {device: rank for rank, device in enumerate(schedule.rank_to_device)}
    rings: defaultdict[tuple[int, int], set[tuple[int, ...]]] = defaultdict(set)
    for ranks in members.values():
        for source, target in possible_hops([schedule.rank_to_device[rank] for rank in ranks], cluster):
            rings[rank_of[source], rank_of[target]].add(ranks)
    lists = lower(schedule).ops if rings else ()
    for (source, target), ranks_of in rings.items():
        stages = {stage for stage, ranks in members.items() if ranks in ranks_of}
        sent, got = _along(lists[source], Send, target, stages), _along(lists[target], Recv, source, stages)
        has_messages = any(isinstance(op, Message) for op in sent)
        if sent != got or len(ranks_of) > 1 or (has_messages and len(next(iter(ranks_of))) > 2):
            return False
    return True


def _along(row: Sequence[Op], kind: type[Send] | type[Recv], peer: int, stages: Collection[int]) -> list[Message | int]:
    """Return the posts at one end of a link: messages, and reductions by stage."""
    return [
        op.stage if isinstance(op, Reduce) else op.message
        for op in row
        if (isinstance(op, Reduce) and op.stage in stages) or (isinstance(op, kind) and op.peer == peer)
    ]
