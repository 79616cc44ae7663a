"""Meetings of posts: the one statement of which posts of different ranks belong together.

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
from collections.abc import Iterable
from itertools import count
from typing import TypeAlias, TypeVar, final

from pipesched.schedules import Message, Op, Recv, Reduce, Send

Channel: TypeAlias = tuple[int, int]
"""(rank that sends, rank that receives)."""

MeetingKey: TypeAlias = tuple[Channel | int, int]
"""The channel, or the stage that is reduced, and k from 0."""

_Post = TypeVar("_Post")


def channel_of(rank: int, op: Send | Recv) -> Channel:
    """Return the channel of what `rank` posts."""
    return (rank, op.peer) if isinstance(op, Send) else (op.peer, rank)


@final
class Meetings:
    """Tells posts that meet, given those of each rank in the order of its list; ranks may take turns in any way."""

    def __init__(self) -> None:
        self._sends: defaultdict[Channel, count[int]] = defaultdict(count)
        self._recvs: defaultdict[Channel, count[int]] = defaultdict(count)
        self._reduces: defaultdict[tuple[int, int], count[int]] = defaultdict(count)  # (rank, stage)

    def come(self, rank: int, op: Send | Recv | Reduce) -> MeetingKey:
        """Return where the next post of `rank` comes to: posts meet that have equal keys.

        `send` and `recv` say the same of what is known to be one, and are quicker.
        """
        if isinstance(op, Reduce):
            return op.stage, next(self._reduces[rank, op.stage])
        return self.send(rank, op.peer) if isinstance(op, Send) else self.recv(rank, op.peer)

    def send(self, rank: int, peer: int) -> tuple[Channel, int]:
        """Return where the next Send of `rank` to `peer` comes to."""
        channel = rank, peer
        return channel, next(self._sends[channel])

    def recv(self, rank: int, peer: int) -> tuple[Channel, int]:
        """Return where the next Recv of `rank` from `peer` comes to."""
        channel = peer, rank
        return channel, next(self._recvs[channel])

    def clear(self) -> None:
        """Begin anew: the next posts are the first."""
        for numbers in (self._sends, self._recvs, self._reduces):
            numbers.clear()


def transfers(posts: Iterable[tuple[int, Op, _Post]]) -> list[tuple[Message, _Post, _Post]]:
    """Pair the Sends and Recvs that meet.

    Args:
        posts: The rank, the op, and what the caller knows it by (its place in a list, its span), those of each rank in
            the order of its list; other ops do not count.

    Returns:
        Of each transfer its message, its Send and its Recv, in order of the Recvs; nothing of a post that meets none.
    """
    meetings = Meetings()
    sends: dict[MeetingKey, _Post] = {}
    recvs: dict[MeetingKey, tuple[Message, _Post]] = {}
    for rank, op, post in posts:
        if isinstance(op, Send):
            sends[meetings.send(rank, op.peer)] = post
        elif isinstance(op, Recv):
            recvs[meetings.recv(rank, op.peer)] = op.message, post
    return [(message, sends[key], recv) for key, (message, recv) in recvs.items() if key in sends]


def meeting_reduces(posts: Iterable[tuple[int, Op, _Post]]) -> list[list[_Post]]:
    """Return the Reduces that meet, those of each reduction in order of the posts.

    Args:
        posts: As `transfers` takes them.
    """
    meetings, meeting_posts = Meetings(), defaultdict[MeetingKey, list[_Post]](list)
    for rank, op, post in posts:
        if isinstance(op, Reduce):
            meeting_posts[meetings.come(rank, op)].append(post)
    return list(meeting_posts.values())
