"""What meets what: the one statement of which posts of different ranks belong together.

    rank 0   S>1   S>1   R<1          the k-th Send of a channel, a directed pair of ranks, meets its k-th Recv
              │     │     │
    rank 1   R<0   R<0   S>0

    rank 0   0REDUCE   0REDUCE        the k-th Reduce of a stage on one rank meets the k-th on every other that
                │         │           reduces it
    rank 2   0REDUCE   0REDUCE

When what meets can start, and when it is over, is up to who asks.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias, final

from pipesched.schedules import Recv, Reduce, Send

Channel: TypeAlias = tuple[int, int]
"""(rank that sends, rank that receives)."""

MeetingKey: TypeAlias = tuple[Channel | int, int]
"""The channel, or the stage that is reduced, and k from 0."""


def channel_of(rank: int, op: Send | Recv) -> Channel:
    """Return the channel of what `rank` posts."""
    return (rank, op.peer) if isinstance(op, Send) else (op.peer, rank)


@final
class Meetings:
    """Tells posts that meet, given those of each rank in the order of its list; ranks may take turns in any way."""

    def __init__(self) -> None:
        self._num_posted: defaultdict[tuple[int, type[Send | Recv | Reduce], Channel | int], int] = defaultdict(int)

    def come(self, rank: int, op: Send | Recv | Reduce) -> MeetingKey:
        """Return where the next post of `rank` comes to: posts meet that have equal keys."""
        where = op.stage if isinstance(op, Reduce) else channel_of(rank, op)
        own = rank, type(op), where
        number = self._num_posted[own]
        self._num_posted[own] = number + 1
        return where, number

    def clear(self) -> None:
        """Begin anew: the next posts are the first."""
        self._num_posted.clear()
