"""Communicators: the queues of posted Sends and Recvs, by backend.

A rank posts its Sends and Recvs and continues. Posts wait in *streams*: only the first post of a stream is under way.
The k-th Send of a channel (a directed pair of ranks) and its k-th Recv belong together; they are over when both are
under way. Backends differ in the posts that share a stream:

    BUFFERED   Recvs of a channel; Sends do not wait
    CHANNEL    Sends of a channel, Recvs of a channel                   0: S>1 | R<1 | S>2
    DEVICE     the same; but reductions of a rank go one after the other (`semantics.reductions`), as in the next three
    PAIR       all between two ranks, both ways                         0: S>1 R<1   | S>2
    RANK       all of a rank                                            0: S>1 R<1 S>2
    BATCHED    all of a rank, neighbours in its list at the same time   0: (S>1 R<1) (S>2)

So under PAIR the k-th post of rank a for rank b has to meet the k-th post of b for a, one a Send and the other a Recv.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, assert_never

from pipesched.schedules.ops import Recv, Send
from pipesched.schedules.semantics.meetings import MeetingKey, Meetings

ListPosition: TypeAlias = tuple[int, int]
"""(rank, position in its list)."""


class Communication(StrEnum):
    """The Sends and Recvs that share a stream."""

    BUFFERED = "buffered"
    CHANNEL = "channel"
    DEVICE = "device"
    PAIR = "pair"
    RANK = "rank"
    BATCHED = "batched"

    @property
    def orders_reductions(self) -> bool:
        """Whether a rank's reductions of all stages run one after the other."""
        return self not in (Communication.BUFFERED, Communication.CHANNEL)


@dataclass(slots=True, eq=False)
class PostBatch:
    """Sends and Recvs that start and end together; nearly always a single one.

    Attributes:
        start: Position of the first post in the rank's list.
        stream: The stream in which the batch waits, or None without a wait.
        num_open: Number of posts that have not met their counterpart.
    """

    rank: int
    start: int
    ops: Sequence[Send | Recv]
    stream: deque[PostBatch] | None
    num_open: int


class Streams:
    """The posted Sends and Recvs of all ranks."""

    def __init__(self, communication: Communication) -> None:
        self.communication = communication
        self.num_unsent: Counter[int] = Counter()
        """Unfinished Sends of each rank; a rank's list ends after all of them."""
        self.crossed: set[ListPosition] = set()
        """Places of posts that met a counterpart with another message."""
        self._streams: defaultdict[tuple[int, ...], deque[PostBatch]] = defaultdict(deque)
        self._meetings = Meetings()
        self._under_way: dict[MeetingKey, tuple[PostBatch, int]] = {}
        """Started posts without a counterpart so far."""

    def post(self, rank: int, start: int, ops: Sequence[Send | Recv]) -> list[PostBatch]:
        """Post `ops` of `rank` as one batch; return the batches, of any rank, that this post completes.

        Args:
            rank: The rank.
            start: Position of the first op in the rank's list.
            ops: The ops.
        """
        is_send = isinstance(ops[0], Send)
        if is_send and self.communication is Communication.BUFFERED:
            return self._start(PostBatch(rank, start, ops, None, len(ops)))
        stream = self._streams[self._key(rank, ops[0].peer, is_send)]
        batch = PostBatch(rank, start, ops, stream, len(ops))
        stream.append(batch)
        self.num_unsent[rank] += sum(isinstance(op, Send) for op in ops)
        return self._start(batch) if len(stream) == 1 else []

    def held_by(self) -> dict[ListPosition, ListPosition]:
        """Return, for each unfinished post, the post of its stream that must meet its counterpart first."""
        blockers: dict[ListPosition, ListPosition] = {}
        lonely = {(batch.rank, batch.start + offset) for batch, offset in self._under_way.values()}
        for stream in self._streams.values():
            if stream:
                first = stream[0]
                places = ((first.rank, first.start + offset) for offset in range(len(first.ops)))
                held = [place for place in places if place in lonely]
                for batch in stream:
                    blockers |= {(batch.rank, batch.start + offset): held[0] for offset in range(len(batch.ops))}
                blockers |= {place: place for place in held}
        return blockers

    def _key(self, rank: int, peer: int, is_send: bool) -> tuple[int, ...]:
        match self.communication:
            case Communication.BUFFERED | Communication.CHANNEL | Communication.DEVICE:
                return (rank, peer, is_send)
            case Communication.PAIR:
                return (rank, peer)
            case Communication.RANK | Communication.BATCHED:
                return (rank,)
            case _:
                assert_never(self.communication)

    def _start(self, first: PostBatch) -> list[PostBatch]:
        """Start a batch, and then the batches behind each finished one; return the finished batches."""
        over: list[PostBatch] = []
        starting = [first]
        while starting:
            batch = starting.pop()
            for offset, op in enumerate(batch.ops):
                key = self._meetings.come(batch.rank, op)
                if key not in self._under_way:
                    self._under_way[key] = (batch, offset)
                    continue
                other, at = self._under_way.pop(key)
                if other.ops[at].message != op.message:
                    self.crossed |= {(batch.rank, batch.start + offset), (other.rank, other.start + at)}
                for end in (batch, other):
                    end.num_open -= 1
                    if not end.num_open:
                        over.append(end)
                        starting += self._finish(end)
        return over

    def _finish(self, batch: PostBatch) -> list[PostBatch]:
        """Remove a finished batch from its stream; return the next batch of the stream, which starts now."""
        if batch.stream is None:
            return []
        batch.stream.popleft()
        self.num_unsent[batch.rank] -= sum(isinstance(op, Send) for op in batch.ops)
        return [batch.stream[0]] if batch.stream else []
