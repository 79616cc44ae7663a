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
        stuck = outcome.blocked[0]
        raise ScheduleError(
            f"{schedule.name}: cannot be lowered: rank {stuck.rank} waits forever at op {stuck.index} ({stuck.op}); "
            "check the schedule"
        )
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


_Places = list[dict[int, list[Op]]]


def _place(schedule: Schedule, order: tuple[tuple[int, int], ...]) -> tuple[_Places, _Places]:
    """Return, per rank, the Sends after op `index` and the Recvs after the first `count` ops."""
    num_ranks, route = schedule.num_ranks, routes(schedule)
    sends: _Places = [defaultdict(list) for _ in range(num_ranks)]
    recvs: _Places = [defaultdict(list) for _ in range(num_ranks)]
    clocks = [[0] * num_ranks for _ in range(num_ranks)]
    made: dict[Message, tuple[int, tuple[int, ...]]] = {}
    for rank, index in order:
        op, clock = schedule.ops[rank][index], clocks[rank]
        if isinstance(op, Reduce):
            _join(schedule, clocks, op.stage)
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
    return sends, recvs


def _join(schedule: Schedule, clocks: list[list[int]], stage: int) -> None:
    """Let every replica of `stage` know what the others know: they meet at a Reduce."""
    members = [rank for rank, row in enumerate(schedule.ops) if Reduce(stage) in row]
    joint = [max(clocks[member][rank] for member in members) for rank in range(schedule.num_ranks)]
    for member in members:
        clocks[member][:] = joint
