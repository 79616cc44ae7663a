"""Acknowledgements: a message that a rank receives proves that some of its own messages have been used.

    peer's list    R<me  1F0      R<me  S>me  1F1      S>me
                   m0    uses m0  m1    1     uses m1  2

The peer's first message proves that it has used one message of the rank, and its second message proves it for two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import final

from pipesched.schedules.ops import Message, Op, Recv, Send, computes, needs_from_others
from pipesched.schedules.semantics.meetings import Meetings


@final
class Acknowledgements:
    """A peer's messages to a rank, in order, each with the number of the rank's messages that the peer has used.

    Gloo does not report the end of a Send. But an answer proves that the used messages were sent, so their tensors
    can be freed long before the end of the list.

    Args:
        ops: The peer's lowered list.
        peer: Rank of the peer.
        me: Number of the rank.
        num_stages: Number of stages of the whole pipeline.
        is_held: Whether the list is in memory and is read once; a generated list is read for every iteration.
    """

    def __init__(self, ops: Iterable[Op], peer: int, me: int, num_stages: int, *, is_held: bool = False) -> None:
        self._ops = ops
        self._peer = peer
        self._me = me
        self._num_stages = num_stages
        self._known = tuple(self._read()) if is_held else None

    def __iter__(self) -> Iterator[tuple[Message, int]]:
        return self._read() if self._known is None else iter(self._known)

    def _read(self) -> Iterator[tuple[Message, int]]:
        numbers: dict[Message, int] = {}
        meetings = Meetings()
        used = 0
        for op in self._ops:
            match op:
                case Recv():
                    if op.peer == self._me:
                        _, numbers[op.message] = meetings.recv(self._peer, self._me)
                case Send():
                    if op.peer == self._me:
                        yield op.message, used
                case _:
                    for part in computes(op):
                        for message in needs_from_others(part, self._num_stages):
                            if message in numbers:
                                used = max(used, numbers.pop(message) + 1)
