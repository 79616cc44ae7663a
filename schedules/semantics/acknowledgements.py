"""Acknowledgements: which of a rank's messages must have been used, given one that it received."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import final

from pipesched.schedules import Message, Op, Recv, Send, computes, needs


@final
class Acknowledgements:
    """What a peer sends a rank, in order, each message with how many of the rank's own the peer has used by then.

    Gloo cannot be asked whether a message has left; but when such an answer comes, those have, and their tensors
    can be let go long before the end of the list.

    Args:
        ops: The peer's lowered list; one in memory is worked through once and for all.
        me: The rank.
        num_stages: Of the whole pipeline.
    """

    def __init__(self, ops: Iterable[Op], me: int, num_stages: int) -> None:
        self._ops = ops
        self._me = me
        self._num_stages = num_stages
        self._known = tuple(self._read()) if isinstance(ops, tuple) else None

    def __iter__(self) -> Iterator[tuple[Message, int]]:
        return self._read() if self._known is None else iter(self._known)

    def _read(self) -> Iterator[tuple[Message, int]]:
        places: dict[Message, int] = {}
        posted = used = 0
        for op in self._ops:
            if isinstance(op, Recv) and op.peer == self._me:
                places[op.message] = posted
                posted += 1
            for part in computes(op):
                for message in needs(part, self._num_stages):
                    if message.stage != part.stage and message in places:
                        used = max(used, places.pop(message) + 1)
            if isinstance(op, Send) and op.peer == self._me:
                yield op.message, used
