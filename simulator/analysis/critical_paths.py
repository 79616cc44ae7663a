"""The critical path: one chain of ops and messages, each waiting for the one before it, that fills the makespan.

From the end of the last work back to the start, always to the latest cause of the start:

    Compute, Step    the op before it on its rank, or the last message, or the last Reduce, to come
    transfer         the op that posted its Send, or its Recv, or the earlier traffic of its link
    Reduce           the last op of its replicas before it, or the earlier traffic of its links

The links of the chain touch, so their times add up to the makespan. If nothing in the Timeline ends at the instant at
which something starts, shared resources (a NIC, a link, a device) delayed it, or in a measured run the runtime did:
the time since its latest known cause is a link of its own, a wait.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby
from typing import NamedTuple, assert_never, final

from pipesched.schedules import Span, Timeline
from pipesched.schedules.ops import (
    Compute,
    Message,
    Op,
    Overlap,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    StageOp,
    Unshard,
    WeightsOp,
    computes,
    needs,
    occupies_device,
)
from pipesched.schedules.semantics import meeting_reduces, transfers
from pipesched.simulator import SAME
from pipesched.simulator.analysis.labels import readable_s


class Kind(StrEnum):
    """The kind of a link of the chain, in the words of the printed path."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OVERLAP = "forward beside backward"
    STEP = "step"
    REDUCE = "reduce"
    MESSAGE = "message"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the critical path.

    Attributes:
        kind: Its kind.
        span: The op. For a message, its Recv; for a wait, the waiting op.
        start_s: Start of the piece in the chain [s]. If a message delays the next message, only a part of the first is
            in the chain.
        end_s: End of the piece, where the next piece begins [s].
    """

    kind: Kind
    span: Span
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """The piece's part of the makespan [s]."""
        return self.end_s - self.start_s

    @property
    def place(self) -> str:
        """Where it happens, for people: a rank, or two."""
        match self.span.op:
            case Recv(peer=peer):
                return f"{peer}->{self.span.rank}"
            case Send(peer=peer):
                return f"{self.span.rank}->{peer}"
            case _:
                return f"rank {self.span.rank}"


def critical_path(timeline: Timeline) -> tuple[Piece, ...]:
    """Return the chain in order of time; each piece starts where the one before it ends.

    Args:
        timeline: Predicted, or measured; with communication.
    """
    return tuple(reversed(tuple(_Walk(timeline).pieces()))) if timeline.without_messages else ()


def shares(path: Sequence[Piece]) -> dict[Kind, float]:
    """Return the seconds of each kind, the longest first."""
    parts_of: defaultdict[Kind, list[float]] = defaultdict(list)
    for piece in path:
        parts_of[piece.kind].append(piece.seconds)
    seconds = {kind: math.fsum(parts) for kind, parts in parts_of.items()}
    return dict(sorted(((kind, s) for kind, s in seconds.items() if s > 0), key=lambda item: -item[1]))


def readable_path(path: Sequence[Piece]) -> list[str]:
    """Return the path for people: a text for each stay on a rank and each message.

    ``rank 0: 8 forwards 12.1 ms, 3 backwards 9 ms``, ``message 0->1 3.2 ms``
    """
    texts = []
    timed = [piece for piece in path if piece.seconds > 0]
    for (place, is_on_rank), group in groupby(timed, key=lambda piece: (piece.place, piece.place.startswith("rank"))):
        stay = list(group)
        parts = [_counted(kind, [piece for piece in stay if piece.kind is kind]) for kind in shares(stay)]
        if parts:
            texts.append(
                f"{place}: {', '.join(parts)}" if is_on_rank else ", ".join(f"{part} {place}" for part in parts)
            )
    return texts


def _counted(kind: Kind, pieces: Sequence[Piece]) -> str:
    seconds = readable_s(math.fsum(piece.seconds for piece in pieces))
    several = f"{len(pieces)} {kind}s" if kind not in (Kind.OVERLAP, Kind.RECOMPUTE) else f"{len(pieces)} x {kind}"
    return f"{kind} {seconds}" if len(pieces) == 1 else f"{several} {seconds}"


class _Cause(NamedTuple):
    """An event that ends at `end_s` and releases the next op; without a span, the start of the run."""

    end_s: float
    span: Span | None


@final
class _Started:
    """The transfers of one channel, or the Reduces of one rank, in order of their starts."""

    def __init__(self, spans: Sequence[Span]) -> None:
        by_start = sorted((span.start_s, -index) for index, span in enumerate(spans))  # of equal ones the first is last
        self._spans = [spans[-index] for _, index in by_start]
        self._until_s = list(accumulate((span.end_s for span in self._spans), max))  # when all up to it are over

    def last_under_way(self, span: Span, same_s: float) -> Span | None:
        """Return the last other span that started before `span` and was still running at its start, or None."""
        index = bisect_left(self._spans, span.start_s, key=lambda other: other.start_s) - 1
        while index >= 0 and self._until_s[index] + same_s >= span.start_s:
            other = self._spans[index]
            if other.end_s + same_s >= span.start_s and other.op != span.op:
                return other
            index -= 1
        return None


@final
class _Walk:
    """The Timeline by rank, and the waits between its ops."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._begin_s = timeline.start_s
        self._same_s = SAME * timeline.makespan_s
        self._num_stages = timeline.num_stages
        self._rows: list[list[Span]] = [[] for _ in timeline.rank_to_device]
        self._place: dict[int, int] = {}  # in its rank's list, by id: equal spans are not the same
        self._worked: list[list[int]] = [[] for _ in timeline.rank_to_device]  # where the last op before did not post
        self._posted_s: list[list[float]] = [[] for _ in timeline.rank_to_device]
        self._replicas = {id(span): spans for spans in meeting_reduces(timeline.spans) for span in spans}
        self._other_end: dict[int, Span] = {}  # the Recv of a Send, the Send of a Recv, by id
        self._recvs: dict[tuple[int, Message], Span] = {}
        channels: defaultdict[tuple[int, int], list[Span]] = defaultdict(list)  # Recvs, in order of the channel
        for message, send, recv in transfers(timeline.spans):
            self._other_end[id(send)], self._other_end[id(recv)] = recv, send
            self._recvs[recv.rank, message] = recv
            channels[send.rank, recv.rank].append(recv)
        self._on_channel = {ends: _Started(recvs) for ends, recvs in channels.items()}
        self._reduces: defaultdict[tuple[int, int], list[Span]] = defaultdict(list)  # of a stage on a rank
        self._unshards: defaultdict[tuple[int, int], list[Span]] = defaultdict(list)  # of a stage on a rank
        unshards_on: defaultdict[int, list[Span]] = defaultdict(list)  # the Unshards of a rank
        self._reduces_on: defaultdict[int, list[Span]] = defaultdict(list)  # the Reduces of a rank
        for span in timeline.spans:
            row, worked = self._rows[span.rank], self._worked[span.rank]
            before = worked[-1] if worked else -1
            worked.append(len(row) - 1 if row and occupies_device(row[-1].op) else before)
            self._posted_s[span.rank].append(span.posted_s)
            self._place[id(span)] = len(row)
            row.append(span)
            if isinstance(span.op, Reduce):
                self._reduces[span.op.stage, span.rank].append(span)
                self._reduces_on[span.rank].append(span)
            elif isinstance(span.op, Unshard):
                self._unshards[span.op.stage, span.rank].append(span)
                unshards_on[span.rank].append(span)
        self._unshards_in_order = [_Started(unshards_on[rank]) for rank in range(len(self._rows))]
        self._reduces_in_order = [_Started(self._reduces_on[rank]) for rank in range(len(self._rows))]

    def pieces(self) -> Iterator[Piece]:
        """Yield the chain from its end."""
        span: Span | None = max(self._timeline.without_messages, key=lambda span: (span.end_s, span.start_s))
        assert span is not None
        end_s = span.end_s
        while span is not None:
            start_s = min(max(span.start_s, self._begin_s), end_s)
            yield Piece(_kind(span.op), span, start_s, end_s)
            end_s = start_s
            cause = self._cause(span)
            if end_s - cause.end_s > self._same_s:
                yield Piece(Kind.WAIT, span, max(cause.end_s, self._begin_s), end_s)
                end_s = max(cause.end_s, self._begin_s)
            span = cause.span

    def _cause(self, span: Span) -> _Cause:
        """Return the latest cause of the start of `span`; a tie goes to the op on the same rank."""
        causes = [_Cause(self._begin_s, None), *self._causes(span)]
        possible = [cause for cause in causes if cause.end_s <= span.start_s + self._same_s]
        return max(possible, key=lambda cause: cause.end_s)

    def _causes(self, span: Span) -> Iterator[_Cause]:
        op = span.op
        match op:
            case Send():
                recv = self._other_end.get(id(span))
                yield from [] if recv is None else self._causes(recv)
            case Recv():
                yield from self._of_transfer(span, op)
            case Reduce():
                yield from self._of_reduce(span)
            case Compute() | Overlap():
                yield self._reached(span)
                messages = [message for part in computes(op) for message in needs(part, self._num_stages)]
                for part in computes(op):
                    yield from self._last_before(span, self._unshards[part.stage, span.rank])
                recvs = [self._recvs.get((span.rank, message)) for message in messages]
                yield from (_Cause(recv.end_s, recv) for recv in recvs if recv is not None)
            case WeightsOp():
                yield self._reached(span)
                yield from self._last_before(span, self._reduces[op.stage, span.rank])
            case Unshard():
                yield self._reached(span)
                yield from self._in_the_way(span, self._unshards_in_order[span.rank])
            case Reshard():
                yield self._reached(span)
            case _:
                assert_never(op)

    def _last_before(self, span: Span, posts: list[Span]) -> Iterator[_Cause]:
        """Yield the end of the last of `posts` before `span` in the list of its rank; nothing if none is."""
        count = bisect_left(posts, self._index(span), key=self._index)
        yield from (_Cause(post.end_s, post) for post in posts[max(0, count - 1) : count])

    def _of_transfer(self, span: Span, op: Recv) -> Iterator[_Cause]:
        """Yield the ops that posted the transfer, and earlier traffic: a message of its channel, or a Reduce."""
        yield self._reached(span)
        send = self._other_end.get(id(span))
        if send is not None:
            yield self._reached(send)
            yield from self._in_the_way(span, self._on_channel[op.peer, span.rank])
        yield from self._in_the_way(span, self._reduces_in_order[span.rank])

    def _of_reduce(self, span: Span) -> Iterator[_Cause]:
        """Yield the ops that posted the Reduce `span`, and earlier traffic on its links."""
        replicas = self._replicas[id(span)]
        for replica in replicas:
            yield self._reached(replica)
            yield from self._in_the_way(span, self._reduces_in_order[replica.rank])
            for peer in replicas:
                if (peer.rank, replica.rank) in self._on_channel:
                    yield from self._in_the_way(span, self._on_channel[peer.rank, replica.rank])

    def _in_the_way(self, span: Span, others: _Started) -> Iterator[_Cause]:
        """Yield the last of `others` that was running when `span` started: it may have occupied a link until then."""
        other = others.last_under_way(span, self._same_s)
        if other is not None:
            yield _Cause(span.start_s, other)

    def _reached(self, span: Span) -> _Cause:
        """Return the cause of the rank's arrival at `span`: the op before it that does more than post."""
        row, worked = self._rows[span.rank], self._worked[span.rank][self._index(span)]
        at_once = bisect_left(self._posted_s[span.rank], span.posted_s - self._same_s, hi=self._index(span))
        for index in range(at_once - 1, worked, -1):  # later ones were posted together with `span`: no rank waited
            if row[index].end_s <= span.posted_s + self._same_s:
                worked = index
                break
        return (
            _Cause(min(row[worked].end_s, span.posted_s), row[worked]) if worked >= 0 else _Cause(self._begin_s, None)
        )

    def _index(self, span: Span) -> int:
        return self._place[id(span)]


def _kind(op: Op) -> Kind:
    match op:
        case Overlap():
            return Kind.OVERLAP
        case Compute(phase=Phase.FORWARD):
            return Kind.FORWARD
        case Compute(phase=Phase.RECOMPUTE):
            return Kind.RECOMPUTE
        case Compute():
            return Kind.BACKWARD
        case Send() | Recv():
            return Kind.MESSAGE
        case Reduce():
            return Kind.REDUCE
        case StageOp():
            return Kind.STEP
        case _:
            assert_never(op)
