"""Progress: run through the op lists without times, up to their ends or up to a deadlock.

    rank 0   F0 S>1 R<1 F1 S>1 R<1 B0        stands still at B0, which needs the gradient that 1B0 makes
                 ↓       ↙          ↖
    rank 1      R<0 R<0      F0 B0 S>0       continues as soon as a message is there; its Send lets B0 run

Every rank runs its list in order. A Compute waits for the messages that it needs. Send and Recv post and continue; a
message arrives when both are over (see `communicators`). Reduce also posts, and the stage's next Step waits until all
Reduces of the group are posted (`reductions`). The end of a list waits for the rank's Sends and Reduces. In lists
without communication, a message arrives when it is made.

An op that runs never blocks another one, so all orders of the ranks reach the same ops: one order is enough.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import assert_never

from pipesched.schedules import Schedule
from pipesched.schedules.ops import (
    Compute,
    Message,
    Op,
    Overlap,
    Recv,
    Reduce,
    Send,
    StageOp,
    awaits_sum,
    computes,
    gives,
    needs,
)
from pipesched.schedules.semantics.communicators import Communication, ListPosition, Streams
from pipesched.schedules.semantics.reductions import OpenReductions


@dataclass(frozen=True, slots=True)
class Blocked:
    """The op at which a rank is blocked.

    Attributes:
        index: Place of `op` in the rank's list, or the length of the list if only Sends and Reduces are unfinished.
        op: The op, or None at the end of the list.
        waits_for: The awaited message, or None if the op waits for a reduction, or at the end of the list.
    """

    rank: int
    index: int
    op: Op | None
    waits_for: Message | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of lists: the ops that each rank reaches.

    Attributes:
        order: (rank, index) of every op that ran, each after all that it depends on.
        reached: Number of ops that ran, for each rank.
        blocked: One entry for every rank that never finishes.
        held_by: For each posted and unfinished Send, Recv and Reduce, the op of its stream (often itself) that must
            meet its counterparts first.
    """

    order: tuple[ListPosition, ...]
    reached: tuple[int, ...]
    blocked: tuple[Blocked, ...]
    held_by: dict[ListPosition, ListPosition]


def progress(schedule: Schedule, communication: Communication = Communication.CHANNEL) -> Progress:
    """Run through the lists up to their ends or up to a deadlock, in time linear in the number of ops.

    Args:
        schedule: The schedule, with or without communication.
        communication: The posts that share a stream.

    Returns:
        The ops that ran, in a possible order, and the place where each unfinished rank is blocked.
    """
    return _Machine(schedule, communication).run()


class _Machine:
    def __init__(self, schedule: Schedule, communication: Communication) -> None:
        self._schedule = schedule
        self._routes = {} if schedule.is_lowered else schedule.routes()
        self._next = [0] * schedule.num_ranks
        self._there: set[tuple[int, Message]] = set()
        self._waiters: defaultdict[tuple[int, Message], list[int]] = defaultdict(list)
        self._streams = Streams(communication)
        self._reductions = OpenReductions(schedule.summands, are_ordered=communication.orders_reductions)
        self._blocked: dict[int, Message | None] = {}
        self._order: list[ListPosition] = []
        self._ready = list(range(schedule.num_ranks))

    def run(self) -> Progress:
        while self._ready:
            self._advance(self._ready.pop())
        blocked = []
        for rank, message in sorted(self._blocked.items()):
            index, row = self._next[rank], self._schedule.ops[rank]
            blocked.append(Blocked(rank, index, row[index] if index < len(row) else None, message))
        held_by = self._streams.held_by() | self._reductions.held_by() if blocked else {}
        return Progress(tuple(self._order), tuple(self._next), tuple(blocked), held_by)

    def _advance(self, rank: int) -> None:
        """Run ops of `rank` until one must wait."""
        row = self._schedule.ops[rank]
        self._blocked.pop(rank, None)
        while self._next[rank] < len(row):
            op = row[self._next[rank]]
            if awaits_sum(op) and self._reductions.is_waiting(rank, op.stage):
                self._blocked[rank] = None
                return
            match op:
                case Send() | Recv():
                    self._post(rank)
                    continue
                case Compute() | Overlap():
                    missing = self._missing(rank, op)
                    if missing is not None:
                        self._blocked[rank] = missing
                        self._waiters[rank, missing].append(rank)
                        return
                case Reduce():
                    self._ready += self._reductions.post((rank, self._next[rank]), op) - {rank}
                case StageOp():
                    pass
                case _:
                    assert_never(op)
            self._finish(rank, op)
        if self._streams.num_unsent[rank] or self._reductions.is_waiting(rank):
            self._blocked[rank] = None

    def _finish(self, rank: int, op: Op) -> None:
        self._order.append((rank, self._next[rank]))
        self._next[rank] += 1
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

    def _post(self, rank: int) -> None:
        """Post the next Send or Recv, with its neighbours if the communication batches them."""
        start, row = self._next[rank], self._schedule.ops[rank]
        ops = batch_at(row, start, self._streams.communication)
        self._order += [(rank, index) for index in range(start, start + len(ops))]
        self._next[rank] += len(ops)
        for batch in self._streams.post(rank, start, ops):
            for index, op in enumerate(batch.ops, batch.start):
                if isinstance(op, Recv) and (batch.rank, index) not in self._streams.crossed:
                    self._arrive(batch.rank, op.message)
            if batch.rank != rank and self._next[batch.rank] == len(self._schedule.ops[batch.rank]):
                self._ready.append(batch.rank)

    def _arrive(self, rank: int, message: Message) -> None:
        self._there.add((rank, message))
        self._ready.extend(self._waiters.pop((rank, message), ()))


def batch_at(row: tuple[Op, ...], start: int, communication: Communication) -> list[Send | Recv]:
    """Return the Send or Recv at `start`, and the posts directly behind it if `communication` batches them."""
    ops: list[Send | Recv] = []
    for index in range(start, len(row) if communication is Communication.BATCHED else start + 1):
        op = row[index]
        if not isinstance(op, Send | Recv):
            break
        ops.append(op)
    return ops
