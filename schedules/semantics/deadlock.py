"""Explain a deadlock: the chain of waiting ops, up to a circle or a missing op.

A blocked op waits for another blocked op, or for a missing op. So the chain of reasons from any rank ends in a circle
or at a missing op:

    0B0 of rank 0 --needs--> 1B0 of rank 1 --comes after--> 1F1 --needs--> 0F1 of rank 0 --comes after--> 0B0
    1F0 of rank 1 --needs--> 1RECV_F0 --meets--> 0SEND_F0 of rank 0, which is missing
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TypeAlias, assert_never

from pipesched.schedules import Schedule
from pipesched.schedules.ops import (
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    PostOp,
    Recv,
    Reduce,
    Send,
    StageOp,
    Step,
    computes,
    gives,
    needs,
)
from pipesched.schedules.semantics.communicators import Communication, ListPosition
from pipesched.schedules.semantics.meetings import MeetingKey, Meetings
from pipesched.schedules.semantics.progress import Progress, batch_at, progress

_MOST_STEPS = 7
"""Most links that the text of a deadlock shows in full."""


class Why(StrEnum):
    """The reason why an op blocks another; the values are the words of the report."""

    NEEDS = "waits for"
    """A computation: the op that makes a message, or the Recv that brings it; a Step or unposted Reduce: the Reduce
    before it."""
    MEETS = "waits for the other end,"
    """A Send or Recv: its counterpart."""
    REPLICAS = "waits for its replica"
    """A Reduce: the Reduce of another rank."""
    AFTER = "comes after"
    """The rank has not reached this op in its list."""
    BEHIND = "is queued behind"
    """A Send or Recv: another one is the first of the stream. A Reduce: the rank has posted another one before."""
    WITH = "is in one batch with"
    """A Send or Recv: another one of its batch has not met its counterpart."""


@dataclass(frozen=True, slots=True)
class WaitingOp:
    """An unfinished op, and the reason why it waits for the next one."""

    rank: int
    index: int
    op: Op
    why: Why


@dataclass(frozen=True, slots=True)
class Missing:
    """The missing op at the end of a chain of waits.

    Attributes:
        rank: The rank whose list lacks the op, or None for any rank.
        op: The text of the op.
        text: The actual ops in its place, as text.
    """

    rank: int | None
    op: str
    text: str

    def __str__(self) -> str:
        return f"{self.op}{'' if self.rank is None else f' of rank {self.rank}'}, {self.text}"


@dataclass(frozen=True, slots=True)
class Deadlock:
    """One reason why ranks are blocked.

    Attributes:
        links: Ops that each wait for the next one; the last waits for the first, or for the missing op.
        missing: The missing op at the end of the chain, or None for a circle.
        others: Ranks outside of the chain that wait for it.
    """

    links: tuple[WaitingOp, ...]
    missing: Missing | None
    others: tuple[int, ...]

    def __str__(self) -> str:
        first = self.links[0]
        steps = [f"{_name(link, before.rank)}, which {link.why.value} " for before, link in pairwise(self.links)]
        if len(steps) > _MOST_STEPS:
            steps[3:-2] = [f"(and so on over {len(steps) - 5} ops) "]
        end = f"{_name(first, self.links[-1].rank)}: a circle" if self.missing is None else str(self.missing)
        others = f"; {_ranks(self.others)} for it" if self.others else ""
        return f"{first.op} {first.why.value.replace('waits', 'waits forever', 1)} {''.join(steps)}{end}{others}"


def deadlocks(schedule: Schedule, communication: Communication = Communication.CHANNEL) -> tuple[Deadlock, ...]:
    """Return the reasons why ranks are blocked, each once; empty if all lists finish."""
    outcome = progress(schedule, communication)
    return explain(schedule, outcome, communication) if outcome.blocked else ()


def explain(
    schedule: Schedule, outcome: Progress, communication: Communication = Communication.CHANNEL
) -> tuple[Deadlock, ...]:
    """Return the reasons for the blocked ops of `progress`."""
    reasons = _Reasons(schedule, outcome, communication)
    root_of: dict[ListPosition, int] = {}
    roots: list[tuple[tuple[WaitingOp, ...], Missing | None]] = []
    ranks: defaultdict[int, list[int]] = defaultdict(list)
    for stuck in outcome.blocked:
        path: dict[ListPosition, Why] = {}
        place: ListPosition | Missing = (stuck.rank, stuck.index)
        while isinstance(place, tuple) and place not in path and place not in root_of:
            why, following = reasons.of(place)
            path[place] = why
            place = following
        if isinstance(place, Missing):
            roots.append((_links(schedule, _tail(schedule, path)), place))
        elif place in path:
            roots.append((_links(schedule, _turned(path, place)), None))
        root = root_of[place] if isinstance(place, tuple) and place in root_of else len(roots) - 1
        root_of |= dict.fromkeys(path, root)
        ranks[root].append(stuck.rank)
    return tuple(
        Deadlock(links, missing, tuple(rank for rank in ranks[root] if rank not in {link.rank for link in links}))
        for root, (links, missing) in enumerate(roots)
    )


_Path: TypeAlias = dict[ListPosition, Why]


def _links(schedule: Schedule, path: _Path) -> tuple[WaitingOp, ...]:
    return tuple(WaitingOp(rank, index, schedule.ops[rank][index], why) for (rank, index), why in path.items())


def _tail(schedule: Schedule, path: _Path) -> _Path:
    """Return the end of a chain: from its last computation or Reduce, or else from its waiting Send."""
    places = list(path)
    stands = [
        at
        for at, (rank, index) in enumerate(places)
        if index < len(schedule.ops[rank]) and not isinstance(schedule.ops[rank][index], Send | Recv)
    ]
    waits = [at for at, place in enumerate(places) if path[place] is Why.MEETS]
    return {place: path[place] for place in places[stands[-1] if stands else waits[0] :]}


def _turned(path: _Path, start: ListPosition) -> _Path:
    """Return the circle through `start`, from its first place that waits for another reason than `AFTER`."""
    places = list(path)
    circle = places[places.index(start) :]
    first = min(place for place in circle if path[place] in (Why.NEEDS, Why.MEETS, Why.REPLICAS))
    at = circle.index(first)
    return {place: path[place] for place in circle[at:] + circle[:at]}


class _Reasons:
    """Finds one reason why an op is unfinished."""

    def __init__(self, schedule: Schedule, outcome: Progress, communication: Communication) -> None:
        self._ops, self._num_stages = schedule.ops, schedule.num_stages
        self._reached, self._held_by = outcome.reached, outcome.held_by
        self._stuck = {stuck.rank: stuck.waits_for for stuck in outcome.blocked}
        self._communication = communication
        self._routes = None if schedule.is_lowered else schedule.routes()
        self._makers: dict[Message, ListPosition] = {}
        self._own: dict[tuple[int, Message], ListPosition] = {}
        self._recvs: defaultdict[tuple[int, Message], list[ListPosition]] = defaultdict(list)
        self._summands = schedule.summands
        self._meetings = Meetings()
        self._meeting_of: dict[ListPosition, MeetingKey] = {}
        self._ends: defaultdict[MeetingKey, list[ListPosition]] = defaultdict(list)
        for rank, row in enumerate(schedule.ops):
            for index, op in enumerate(row):
                self._note((rank, index), op)

    def _note(self, place: ListPosition, op: Op) -> None:
        if isinstance(op, PostOp):
            self._meeting_of[place] = key = self._meetings.come(place[0], op)
            self._ends[key].append(place)
        if isinstance(op, Recv):
            self._recvs[place[0], op.message].append(place)
        for part in computes(op):
            message = gives(part)
            if message is not None:
                self._makers.setdefault(message, place)
                self._own.setdefault((place[0], message), place)

    def of(self, place: ListPosition) -> tuple[Why, ListPosition | Missing]:
        rank, index = place
        row, reached = self._ops[rank], self._reached[rank]
        if index > reached:
            return Why.AFTER, (rank, reached)
        if index == len(row):
            return Why.NEEDS, self._held(rank, lambda op: isinstance(op, Send | Reduce))
        op = row[index]
        match op:
            case Send() | Recv():
                return self._post(place, op)
            case Reduce() if place in self._held_by:
                holder = self._held_by[place]
                why = Why.NEEDS if op.is_over_stages else Why.REPLICAS
                return (Why.BEHIND, holder) if holder != place else (why, self._replica(place, op))
            case Step() | Reduce():
                return Why.NEEDS, self._held(
                    rank, lambda posted: isinstance(posted, Reduce) and posted.stage == op.stage
                )
            case Compute() | Overlap() | StageOp():
                return Why.NEEDS, self._supply(rank, op)
            case _:
                assert_never(op)

    def _held(self, rank: int, is_it: Callable[[Op], bool]) -> ListPosition:
        """Return the first unfinished post of `rank` for which `is_it` is true."""
        return next((rank, i) for i, op in enumerate(self._ops[rank]) if (rank, i) in self._held_by and is_it(op))

    def _post(self, place: ListPosition, op: Send | Recv) -> tuple[Why, ListPosition | Missing]:
        """Return the reason why a posted Send or Recv is unfinished, or did not deliver its message."""
        rank, index = place
        holder = self._held_by.get(place, place)
        if holder != place:
            low, high = min(index, holder[1]), max(index, holder[1])
            is_together = low + len(batch_at(self._ops[rank], low, self._communication)) > high
            return (Why.WITH if is_together else Why.BEHIND), holder
        other = next((end for end in self._ends[self._meeting_of[place]] if end != place), None)
        wanted = Recv(op.message, rank) if isinstance(op, Send) else Send(op.message, rank)
        if other is not None and place in self._held_by:
            return Why.MEETS, other
        text = "which is missing"
        if other is not None:
            peer, there = other
            text = f"at whose place of the channel there is {self._ops[peer][there]} (op {there})"
        elif any(peer == op.peer and self._ops[peer][there] == wanted for peer, there in self._meeting_of):
            text = "which is not at this place of the channel"
        return Why.MEETS, Missing(op.peer, str(wanted), text)

    def _supply(self, rank: int, op: Op) -> ListPosition | Missing:
        """Return the position of the op that supplies the message for which the computation `op` waits."""
        message = self._stuck[rank]
        assert message is not None, "a computation waits for messages alone"
        name = _maker_name(message)
        if (rank, message) in self._own:
            return self._own[rank, message]
        if message not in self._makers:
            return Missing(None, name, "which no rank computes")
        maker = self._makers[message]
        if any(part.stage == message.stage and message in needs(part, self._num_stages) for part in computes(op)):
            return Missing(rank, name, f"which rank {maker[0]} computes instead")
        if self._routes is None:
            recvs = self._recvs[rank, message]
            waiting = [place for place in recvs if place[1] > self._reached[rank] or place in self._held_by]
            wrong = Missing(rank, str(Recv(message, maker[0])), "which is missing")
            return waiting[0] if waiting else recvs[0] if recvs else wrong
        if maker[1] >= self._reached[maker[0]]:
            return maker
        user = self._routes.get((message.receiver, message.microbatch))
        forward = f"{message.receiver}F{message.microbatch}"
        return Missing(
            rank, forward, "which no rank computes" if user is None else f"which rank {user} computes instead"
        )

    def _replica(self, place: ListPosition, op: Reduce) -> ListPosition | Missing:
        """Return the position of the first Reduce of the group that has not been reached, or waits for its turn."""
        ends = {(rank, self._ops[rank][index]): (rank, index) for rank, index in self._ends[self._meeting_of[place]]}
        for other, stage in self._summands[op.group]:
            met = replace(op, stage=stage)
            there = ends.get((other, met))
            if there is None:
                return Missing(other, str(met), "which is missing")
            if there != place and (there[1] >= self._reached[other] or self._held_by[there] != there):
                return there
        raise AssertionError("a Reduce that all replicas have posted, each as its first, is over")


def _maker_name(message: Message) -> str:
    letter = "F" if message.payload is Payload.ACTIVATION else "B"
    return f"{message.stage}{letter}{message.microbatch}"


def _name(link: WaitingOp, rank: int) -> str:
    """Return the name of an op in the report; it has the rank if this is not `rank`."""
    return f"{link.op}{'' if link.rank == rank else f' of rank {link.rank}'} (op {link.index})"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} waits"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} wait"
