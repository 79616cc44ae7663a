"""Communication volume: how many bytes a schedule sends from rank to rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.columns import op_cells
from pipesched.schedules.ops import Message, Payload


@dataclass(frozen=True, slots=True)
class CommunicationVolume:
    """The volume of communication: all messages between ranks.

    Attributes:
        num_messages: Messages of Sends and Reduces.
        num_bytes: Their bytes.
    """

    num_messages: int
    num_bytes: int


def communication_volume(schedule: Schedule, costs: StageCosts) -> CommunicationVolume:
    """Return the communication of the lowered `schedule`.

    A Reduce over r replicas is a ring: in 2 (r - 1) rounds each of them passes on one r-th of the gradients, as
    `profiles.clusters.reduction_time` times it.
    """
    columns = schedule.columns
    num_messages = num_bytes = 0
    for payload, code in ((Payload.ACTIVATION, op_cells.SEND_F), (Payload.GRADIENT, op_cells.SEND_B)):
        for stage, count in Counter(columns.stages[columns.codes == code].tolist()).items():
            num_messages += count
            num_bytes += count * costs.message_bytes(Message(payload, stage, 0))
    reduces = Counter(columns.stages[columns.codes == op_cells.REDUCE].tolist())
    for stage, count in reduces.items():
        members = max(1, len(schedule.reducers.get(stage, ())))
        rounds = 2 * (members - 1) * count // members  # every member takes part in every Reduce of its stage
        num_messages += rounds * members
        num_bytes += rounds * costs.stages[stage].weight_bytes
    return CommunicationVolume(num_messages, num_bytes)
