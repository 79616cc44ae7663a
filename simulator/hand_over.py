"""Hand-over, a rank's own time beside its ops: posting, taking messages, and going from op to op.

    rank 0   F0 ├ op ┤ Send ├ send ┤ F1 ..
                                   └── message ──┐
    rank 1   Recv ├ post ┤ ......................├ receive ┤ F0 ├ op ┤ ..

A hand-over uses as much of the device as an op of its stage. The event engines get the hand-over of each post, receipt
and op here. Closed forms use `Cluster.hand_over_s`, which gives the same time for one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, assert_never

from pipesched.profiles.clusters import Cluster, Hop
from pipesched.profiles.costs import StageCosts, WorkPiece
from pipesched.schedules.ops import Compute, Message, Op, Overlap, Recv, Send, StageOp, Step


class HandOverPart(StrEnum):
    """The kind of a hand-over."""

    SEND = "send"
    POST = "post"
    RECEIVE = "receive"
    OP = "op"


class HandOverWork(NamedTuple):
    """A rank's own work before, between or after its ops.

    Attributes:
        device: Device of the rank.
        stage: The stage whose utilisation the work has.
        hop: The hop of its message, or None for `HandOverPart.OP`, which has no message either.
    """

    part: HandOverPart
    device: int
    stage: int
    hop: Hop | None = None
    message: Message | None = None

    def piece(self, costs: StageCosts, cluster: Cluster) -> WorkPiece:
        """Return the demand of this work on its device if nothing else runs there, at speed 1."""
        return WorkPiece(self._seconds(costs, cluster), costs.stages[self.stage].utilisation)

    def _seconds(self, costs: StageCosts, cluster: Cluster) -> float:
        if self.hop is None or self.message is None:
            return cluster.devices[self.device].op_s
        link = cluster.link(*self.hop)
        match self.part:
            case HandOverPart.SEND:
                return link.sending_s(costs.message_bytes(self.message))
            case HandOverPart.RECEIVE:
                return link.receiving_s(costs.message_bytes(self.message))
            case _:
                return link.post_s


def of_post(rank: int, op: Send | Recv, rank_to_device: Sequence[int]) -> HandOverWork:
    """Return the work of a rank for a Send or Recv; the message leaves no earlier than this work ends."""
    device, peer = rank_to_device[rank], rank_to_device[op.peer]
    if isinstance(op, Send):
        return HandOverWork(HandOverPart.SEND, device, op.message.stage, (device, peer), op.message)
    return HandOverWork(HandOverPart.POST, device, op.message.receiver, (peer, device), op.message)


def of_receipt(rank: int, source: int, message: Message, rank_to_device: Sequence[int]) -> HandOverWork:
    """Return the work of a rank to take an arrived message that it uses."""
    device = rank_to_device[rank]
    hop = rank_to_device[source], device
    return HandOverWork(HandOverPart.RECEIVE, device, message.receiver, hop, message)


def after_op(rank: int, op: Op, rank_to_device: Sequence[int]) -> HandOverWork | None:
    """Return the work of a rank from the end of an op to its next one, or None for no time.

    The work for a Send or Recv is in `of_post`.
    """
    match op:
        case Compute() | Step():
            stage = op.stage
        case Overlap():
            stage = op.first.stage
        case Send() | Recv() | StageOp():
            return None
        case _:
            assert_never(op)
    return HandOverWork(HandOverPart.OP, rank_to_device[rank], stage)
