"""Lowering: put the sends and receives between the computations.

A Send comes right after the op that makes its message. A Recv comes right after the last op of the receiving rank
that the making of the message depends on. Posting it any earlier could not make the transfer start sooner, because
the Send cannot be posted before then, whatever the ops cost; posting it later might. So a transfer always starts
when its Send is posted, and no rank holds more receive buffers than its sender can be ahead.

Which of two ops of different ranks must come first is read off vector clocks: ``clock[r]`` counts the ops of rank r
that are surely over.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from schedules.hang import explain
from schedules.op import Message, Op, Recv, Reduce, Send, computes, gives, needs
from schedules.progress import progress
from schedules.schedule import Schedule, ScheduleError, routes


def lower(schedule: Schedule) -> Schedule:
    """Return `schedule` with its communication; one that has it already comes back as it is.

    A message whose maker and user share a rank stays there and is not sent.

    Raises:
        ScheduleError: The lists cannot finish, so that there is no order to put messages in.
    """
    if schedule.is_lowered:
        return schedule
    outcome = progress(schedule)
    if outcome.blocked:
        hang = explain(schedule, outcome)[0]
        where = f"rank {hang.links[0].rank} op {hang.links[0].index}"
        raise ScheduleError(f"{schedule.name}: cannot be lowered: {where}: {hang}; reorder these ops")
    sends, recvs = _place(schedule, outcome.order)
    rows: list[tuple[Op, ...]] = []
    for rank, row in enumerate(schedule.ops):
        lowered: list[Op] = list(recvs[rank].get(0, ()))
        for index, op in enumerate(row):
            lowered.append(op)
            lowered += sends[rank].get(index, ())
            lowered += recvs[rank].get(index + 1, ())
        rows.append(tuple(lowered))
    return replace(schedule, ops=tuple(rows))


def _place(
    schedule: Schedule, order: tuple[tuple[int, int], ...]
) -> tuple[list[dict[int, list[Send]]], list[dict[int, list[Recv]]]]:
    """Return, per rank, the Sends after op `index` and the Recvs after the first `count` ops."""
    num_ranks, route = schedule.num_ranks, routes(schedule)
    sends: list[dict[int, list[Send]]] = [defaultdict(list) for _ in range(num_ranks)]
    recvs: list[dict[int, list[Recv]]] = [defaultdict(list) for _ in range(num_ranks)]
    clocks = [[0] * num_ranks for _ in range(num_ranks)]
    made: dict[Message, tuple[int, tuple[int, ...]]] = {}
    replicas = _replicas(schedule)
    for rank, index in order:
        op, clock = schedule.ops[rank][index], clocks[rank]
        if isinstance(op, Reduce) and clock[rank] == index:  # the first to come here; the others follow at once
            _meet(clocks, replicas[op.stage])
        for part in computes(op):
            for message in needs(part, schedule.num_stages):
                if message in made:
                    clock[:] = map(max, clock, made[message][1])
        clock[rank] = index + 1
        for part in computes(op):
            result = gives(part)
            peer = None if result is None else route.get((result.receiver, result.microbatch))
            if result is None or peer is None or peer == rank:
                continue
            made[result] = (rank, tuple(clock))
            sends[rank][index].append(Send(result, peer))
            recvs[peer][clock[peer]].append(Recv(result, rank))
    for places in recvs:
        for posts in places.values():
            posts.sort(key=lambda recv: recv.peer)  # of one peer in order; of several in one order always
    return sends, recvs


def _replicas(schedule: Schedule) -> dict[int, list[int]]:
    """Return the ranks that reduce each stage."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for rank, row in enumerate(schedule.ops):
        for stage in {op.stage for op in row if isinstance(op, Reduce)}:
            found[stage].append(rank)
    return found


def _meet(clocks: list[list[int]], members: list[int]) -> None:
    """Let every replica at a Reduce know what the others know, and that all of them are over it."""
    for member in members:
        clocks[member][member] += 1
    joint = [max(column) for column in zip(*(clocks[member] for member in members), strict=True)]
    for member in members:
        clocks[member][:] = joint
