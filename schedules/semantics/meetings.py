"""Meetings of posts: the only definition of the posts of different ranks that belong together.

    rank 0   S>1   S>1   R<1          the k-th Send of a channel, a directed pair of ranks, meets its k-th Recv
              │     │     │
    rank 1   R<0   R<0   S>0

    rank 0   0REDUCE   0REDUCE        the k-th Reduce of a group on one rank and stage meets the k-th on every other
                │         │           rank and stage of the group
    rank 2   0REDUCE   0REDUCE

`Meetings` numbers the posts of ranks that take turns. `transfers` pairs the posts of whole lists, which is faster.
The caller decides the start and the end of a meeting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, final

from pipesched.schedules.ops import Group, Message, Op, PostOp, Recv, Reduce, Send

Channel: TypeAlias = tuple[int, int]
"""(sending rank, receiving rank)."""

MeetingKey: TypeAlias = tuple[Channel | Group, int]
"""The channel, or the group of a reduction, and k from 0."""


def channel_of(rank: int, op: Send | Recv) -> Channel:
    """Return the channel of a post of `rank`."""
    return (rank, op.peer) if isinstance(op, Send) else (op.peer, rank)


@final
class Meetings:
    """Finds posts that meet; the posts of a rank come in list order, and ranks may take turns in any order."""

    def __init__(self) -> None:
        self._sends: defaultdict[Channel, count[int]] = defaultdict(count)
        self._recvs: defaultdict[Channel, count[int]] = defaultdict(count)
        self._reduces: defaultdict[tuple[int, Reduce], count[int]] = defaultdict(count)

    def come(self, rank: int, op: PostOp) -> MeetingKey:
        """Return the key of the next post of `rank`: posts with equal keys meet.

        For a known kind of post, `send` and `recv` return the same key and are faster.
        """
        if isinstance(op, Reduce):
            return op.group, next(self._reduces[rank, op])
        return self.send(rank, op.peer) if isinstance(op, Send) else self.recv(rank, op.peer)

    def send(self, rank: int, peer: int) -> tuple[Channel, int]:
        """Return the key of the next Send of `rank` to `peer`."""
        channel = rank, peer
        return channel, next(self._sends[channel])

    def recv(self, rank: int, peer: int) -> tuple[Channel, int]:
        """Return the key of the next Recv of `rank` from `peer`."""
        channel = peer, rank
        return channel, next(self._recvs[channel])

    def clear(self) -> None:
        """Forget all posts."""
        for numbers in (self._sends, self._recvs, self._reduces):
            numbers.clear()


class RankOp(Protocol):
    """An op of a rank: a Span of a run, or an op in a list (`listed`)."""

    @property
    def rank(self) -> int:
        """The rank whose list has the op."""

    @property
    def op(self) -> Op:
        """The op itself."""


RankOpT = TypeVar("RankOpT", bound=RankOp)


class ListedOp(NamedTuple):
    """An op of a rank's list, and its position there."""

    rank: int
    position: int
    op: Op


def listed(lists: Sequence[Sequence[Op]]) -> Iterator[ListedOp]:
    """Yield the ops of the lists of all ranks, one list after the other."""
    for rank, row in enumerate(lists):
        for position, op in enumerate(row):
            yield ListedOp(rank, position, op)


def transfers(ops: Iterable[RankOpT]) -> list[tuple[Message, RankOpT, RankOpT]]:
    """Pair the Sends and Recvs that meet.

    Args:
        ops: Ops of each rank in list order; only Sends and Recvs count.

    Returns:
        The message, the Send and the Recv of each transfer, channel by channel; posts without a counterpart are left
        out.
    """
    sends = defaultdict[Channel, list[RankOpT]](list)
    recvs = defaultdict[Channel, list[tuple[Message, RankOpT]]](list)
    for rank_op in ops:
        op = rank_op.op
        if isinstance(op, Send):
            sends[rank_op.rank, op.peer].append(rank_op)
        elif isinstance(op, Recv):
            recvs[op.peer, rank_op.rank].append((op.message, rank_op))
    return [
        (message, send, recv)
        for channel, received in recvs.items()
        for send, (message, recv) in zip(sends[channel], received, strict=False)
    ]


def meeting_reduces(ops: Iterable[RankOpT]) -> list[list[RankOpT]]:
    """Return the Reduces that meet, sorted by rank within each reduction.

    Args:
        ops: Same as in `transfers`.
    """
    meetings, reductions = Meetings(), defaultdict[MeetingKey, list[RankOpT]](list)
    for rank_op in ops:
        if isinstance(rank_op.op, Reduce):
            reductions[meetings.come(rank_op.rank, rank_op.op)].append(rank_op)
    return list(reductions.values())
