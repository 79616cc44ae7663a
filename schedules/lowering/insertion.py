"""Lowering: insert the sends and receives between the computations.

A Send comes right after the op that makes its message. A Recv comes right after the last op of the receiving rank
that the making of the message depends on. Posting it any earlier could not make the transfer start sooner, because
the Send cannot be posted before then, whatever the ops cost; posting it later might. So a transfer always starts
when its Send is posted, and no rank holds more receive buffers than its sender can be ahead.

Vector clocks say which of two ops of different ranks must come first: ``clock[r]`` counts the ops of rank r that are
surely over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pipesched.schedules import (
    Message,
    NotRunnableError,
    Op,
    Recv,
    Reduce,
    Schedule,
    ScheduleError,
    Send,
    Step,
    computes,
    gives,
    needs_from_others,
    routes,
    shown,
)
from pipesched.schedules.semantics import MeetingKey, Meetings, explain, progress

_MAX_CLOCKS = 500_000_000
"""Most numbers in the clocks of all ops, one for each rank: they take half a minute."""


def lower(schedule: Schedule) -> Schedule:
    """Return `schedule` with its communication; one that has it already comes back as it is.

    A message whose maker and user share a rank stays there and is not sent.

    Raises:
        NotRunnableError: The lists cannot finish, so that there is no order to put messages in.
        ScheduleError: They are too long for so many ranks, or it is no Schedule.
    """
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"schedule: got {shown(schedule)}, expected a Schedule; try pipesched.build('1f1b', 4, 8)")
    if schedule.is_lowered:
        return schedule
    num_ops = sum(map(len, schedule.ops))
    if schedule.num_ranks * num_ops > _MAX_CLOCKS:
        raise ScheduleError(
            f"{schedule.name}: cannot be lowered: got {schedule.num_ranks} ranks with {num_ops} ops in all, expected "
            f"ranks x ops up to {_MAX_CLOCKS}; try fewer ranks, or fewer micro-batches"
        )
    outcome = progress(schedule)
    if outcome.blocked:
        deadlock = explain(schedule, outcome)[0]
        where = f"rank {deadlock.links[0].rank} op {deadlock.links[0].index}"
        raise NotRunnableError(f"{schedule.name}: cannot be lowered: {where}: {deadlock}; reorder these ops")
    sends, recvs = _place(schedule, outcome.order)
    rows: list[tuple[Op, ...]] = []
    for rank, row in enumerate(schedule.ops):
        lowered: list[Op] = _in_order(recvs[rank].get(0, ()))
        for index, op in enumerate(row):
            lowered.append(op)
            lowered += sends[rank].get(index, ())
            lowered += _in_order(recvs[rank].get(index + 1, ()))
        rows.append(tuple(lowered))
    return replace(schedule, lists=tuple(rows), is_lowered=True)


def _in_order(recvs: Iterable[Recv]) -> list[Op]:
    """Return the Recvs ordered by peer; those of one peer keep their order."""
    return [*sorted(recvs, key=lambda recv: recv.peer)]


def _place(
    schedule: Schedule, order: tuple[tuple[int, int], ...]
) -> tuple[list[dict[int, list[Send]]], list[dict[int, list[Recv]]]]:
    """Return, per rank, the Sends after op `index` and the Recvs after the first `count` ops."""
    num_ranks, route = schedule.num_ranks, routes(schedule)
    sends: list[dict[int, list[Send]]] = [defaultdict(list) for _ in range(num_ranks)]
    recvs: list[dict[int, list[Recv]]] = [defaultdict(list) for _ in range(num_ranks)]
    clocks = [[0] * num_ranks for _ in range(num_ranks)]
    made: dict[Message, tuple[int, ...]] = {}
    reduces = ReduceClocks({stage: len(ranks) for stage, ranks in schedule.reducers.items()})
    for rank, index in order:
        op, clock = schedule.ops[rank][index], clocks[rank]
        if isinstance(op, Step):
            reduces.learn(rank, op.stage, clock)
        for part in computes(op):
            for message in needs_from_others(part, schedule.num_stages):  # its rank knows of its own
                clock[:] = map(max, clock, made.pop(message, clock))
        clock[rank] = index + 1
        if isinstance(op, Reduce):
            reduces.tell(rank, op.stage, clock)
        for part in computes(op):
            result = gives(part)
            peer = None if result is None else route.get((result.receiver, result.microbatch))
            if result is None or peer is None or peer == rank:
                continue
            made[result] = tuple(clock)
            sends[rank][index].append(Send(result, peer))
            recvs[peer][clock[peer]].append(Recv(result, rank))
    return sends, recvs


class ReduceClocks:
    """The joint vector clocks of replicas at their k-th Reduce of a stage, which each of them learns at its next Step.

    A clock is kept until every replica has come to its next Reduce.

    Args:
        num_replicas: How many ranks reduce each stage.
    """

    def __init__(self, num_replicas: Mapping[int, int]) -> None:
        self._num_replicas = num_replicas
        self._meetings = Meetings()
        self._last: dict[tuple[int, int], MeetingKey] = {}  # of a rank and a stage
        self._told: dict[MeetingKey, tuple[int, ...]] = {}
        self._num_there: Counter[MeetingKey] = Counter()
        self._num_gone: Counter[MeetingKey] = Counter()

    def __len__(self) -> int:
        """Return how many clocks are kept."""
        return len(self._told)

    def tell(self, rank: int, stage: int, clock: list[int]) -> None:
        """Let the other replicas know what `rank` knows at its next Reduce of `stage`."""
        self._leave(rank, stage)
        key = self._last[rank, stage] = self._meetings.come(rank, Reduce(stage))
        self._num_there[key] += 1
        self._told[key] = tuple(map(max, clock, self._told.get(key, clock)))

    def learn(self, rank: int, stage: int, clock: list[int]) -> bool:
        """Add what all replicas know at the last Reduce of `rank` to `clock`; return whether they have come to it."""
        key = self._last.get((rank, stage))
        if key is None:
            return True
        if self._num_there[key] < self._num_replicas[stage]:
            return False
        clock[:] = map(max, clock, self._told[key])
        return True

    def _leave(self, rank: int, stage: int) -> None:
        key = self._last.get((rank, stage))
        if key is None:
            return
        self._num_gone[key] += 1
        if self._num_gone[key] == self._num_replicas[stage]:
            del self._told[key], self._num_there[key], self._num_gone[key]
