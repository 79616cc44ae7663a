"""Which op can run when: the op lists worked through without any times.

Every rank goes down its list. A Compute waits until the messages that it needs are there; Send and Recv post and
go on; the k-th message of a channel (a directed pair of ranks) arrives when its k-th Send and its k-th Recv are
posted; a Reduce waits for the stage's other replicas. In lists without communication a message is there as soon
as it is made.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from schedules.op import Message, Op, Recv, Reduce, Send, computes, gives, needs
from schedules.schedule import Schedule, routes


@dataclass(frozen=True, slots=True)
class Blocked:
    """An op that never runs, and what it waits for: a message, or the other replicas at a Reduce."""

    rank: int
    index: int
    op: Op
    waits_for: Message | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the lists come.

    Attributes:
        order: (rank, index) of every op that ran, each after all that it depends on.
        blocked: One entry for every rank that never finishes; empty when all do.
    """

    order: tuple[tuple[int, int], ...]
    blocked: tuple[Blocked, ...]


def progress(schedule: Schedule) -> Progress:
    """Work the lists through as far as they go; linear in the number of ops."""
    return _Machine(schedule).run()


class _Machine:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._routes = {} if schedule.is_lowered else routes(schedule)
        self._next = [0] * schedule.num_ranks
        self._there: set[tuple[int, Message]] = set()
        self._waiters: defaultdict[tuple[int, Message], list[int]] = defaultdict(list)
        self._sends: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
        self._recvs: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
        self._replicas = _replicas(schedule)
        self._arrived: defaultdict[int, list[int]] = defaultdict(list)
        self._blocked: dict[int, Message | None] = {}
        self._order: list[tuple[int, int]] = []
        self._ready = list(range(schedule.num_ranks))

    def run(self) -> Progress:
        while self._ready:
            self._advance(self._ready.pop())
        blocked = tuple(
            Blocked(rank, self._next[rank], self._schedule.ops[rank][self._next[rank]], message)
            for rank, message in sorted(self._blocked.items())
        )
        return Progress(tuple(self._order), blocked)

    def _advance(self, rank: int) -> None:
        """Run ops of `rank` until one must wait."""
        row = self._schedule.ops[rank]
        self._blocked.pop(rank, None)
        while self._next[rank] < len(row):
            op = row[self._next[rank]]
            missing = self._missing(rank, op)
            if missing is not None:
                self._blocked[rank] = missing
                self._waiters[rank, missing].append(rank)
                return
            if isinstance(op, Reduce) and not self._meets(rank, op):
                self._blocked[rank] = None
                return
            self._finish(rank, op)

    def _finish(self, rank: int, op: Op) -> None:
        self._order.append((rank, self._next[rank]))
        self._next[rank] += 1
        if isinstance(op, Send | Recv):
            self._post(rank, op)
        for part in computes(op):
            message = gives(part)
            if message is None:
                continue
            self._arrive(rank, message)
            target = self._routes.get((message.receiver, message.microbatch))
            if target is not None and target != rank:
                self._arrive(target, message)

    def _missing(self, rank: int, op: Op) -> Message | None:
        for part in computes(op):
            for message in needs(part, self._schedule.num_stages):
                if (rank, message) not in self._there:
                    return message
        return None

    def _post(self, rank: int, op: Send | Recv) -> None:
        if isinstance(op, Send):
            receiver, mine, theirs = op.peer, self._sends[rank, op.peer], self._recvs[rank, op.peer]
        else:
            receiver, mine, theirs = rank, self._recvs[op.peer, rank], self._sends[op.peer, rank]
        mine.append(op.message)
        k = len(mine) - 1
        if k < len(theirs) and theirs[k] == op.message:
            self._arrive(receiver, op.message)

    def _arrive(self, rank: int, message: Message) -> None:
        self._there.add((rank, message))
        self._ready.extend(self._waiters.pop((rank, message), ()))

    def _meets(self, rank: int, op: Reduce) -> bool:
        """Whether all replicas have reached this Reduce; the last to come wakes the others."""
        arrived = self._arrived[op.stage]
        if rank not in arrived:
            arrived.append(rank)
        if len(arrived) < len(self._replicas[op.stage]):
            return False
        others = [other for other in arrived if other != rank]
        arrived.clear()
        for other in others:
            self._order.append((other, self._next[other]))
            self._next[other] += 1
            self._ready.append(other)
        return True


def _replicas(schedule: Schedule) -> dict[int, set[int]]:
    """Return, for each stage that is reduced, the ranks that reduce it."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for rank, row in enumerate(schedule.ops):
        for op in row:
            if isinstance(op, Reduce):
                found[op.stage].add(rank)
    return dict(found)
