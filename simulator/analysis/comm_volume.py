"""Communication volume: how many bytes a schedule sends from rank to rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Reduce, Schedule, Send


@dataclass(frozen=True, slots=True)
class CommunicationVolume:
    """The volume of communication: all that leaves any rank.

    Attributes:
        num_messages: Sends, and those of the Reduces.
        num_bytes: What they carry.
    """

    num_messages: int
    num_bytes: int


def communication_volume(schedule: Schedule, costs: StageCosts) -> CommunicationVolume:
    """Return what the lowered `schedule` sends.

    A Reduce over r replicas is a ring: in 2 (r - 1) rounds each of them passes on one r-th of the gradients, as
    `profiles.clusters.reduction_time` times it.
    """
    sends = [op.message for row in schedule.ops for op in row if isinstance(op, Send)]
    reduces = [Counter(op.stage for op in row if isinstance(op, Reduce)) for row in schedule.ops]
    num_messages, num_bytes = len(sends), sum(costs.message_bytes(message) for message in sends)
    for stage in set().union(*reduces):
        members = [counts[stage] for counts in reduces if stage in counts]
        rounds = 2 * (len(members) - 1) * members[0]  # every member takes part in every Reduce of its stage
        num_messages += rounds * len(members)
        num_bytes += rounds * costs.stages[stage].weight_bytes
    return CommunicationVolume(num_messages, num_bytes)
