"""Lowering of generated op lists: sends and receives at the positions of `lowering.insertion`, in little memory.

A Recv stands behind the last op of its rank that the making of its message depends on, so it may have to go in front
of ops that have been read already. An op is handed out when no message can still ask for that: a sender's vector
clock never goes down, so once all senders of a rank know that its op n is over, no more Recvs come before op n + 1.
Senders hear from their receivers soon, through messages in return, so few ops wait.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from math import inf, lcm

from pipesched.schedules import NotRunnableError, Schedule
from pipesched.schedules.ops import Message, Op, Recv, Reduce, Send, Step, computes, gives, needs_from_others, uses_up
from pipesched.schedules.semantics import MeetingKey, Meetings


def lowered_ranks(schedule: Schedule, ranks: Collection[int]) -> Mapping[int, Iterator[Op]]:
    """Return the lists of `ranks` with their communication, made in one go.

    Ops that one list is read ahead of the others stay in memory, as with `itertools.tee`.

    Raises:
        NotRunnableError: While reading, the lists cannot continue.
    """
    if schedule.is_lowered:
        return {rank: iter(schedule.lists[rank]) for rank in ranks}
    machine = _Machine(schedule, ranks)
    return {rank: machine.read(rank) for rank in ranks}


class _Machine:
    """The state of lowering: it goes through the lists of all ranks together, an op of each rank in turn.

    Attributes:
        clocks: ``clocks[rank][other]``: the ops of `other` that are surely over for `rank`.
        made: The unused messages, and the clocks of their makers.
        waiting: The lowered ops that are not yielded yet, for each rank that is read.
        recvs: The Recvs before op n, for each rank that is read.
        reduces: The clocks of replicas at their Reduces.
    """

    def __init__(self, schedule: Schedule, ranks: Collection[int]) -> None:
        num_ranks = schedule.num_ranks
        self._schedule = schedule
        self._lists = [iter(ops) for ops in schedule.lists]
        self._heads = [next(ops, None) for ops in self._lists]
        self._senders = _senders(schedule)
        self._clocks = [[0] * num_ranks for _ in range(num_ranks)]
        self._made: dict[Message, tuple[int, ...]] = {}
        self._waiting: dict[int, deque[list[Op]]] = {rank: deque() for rank in ranks}
        self._recvs: dict[int, defaultdict[int, list[Recv]]] = {rank: defaultdict(list) for rank in ranks}
        self._handed_out = dict.fromkeys(ranks, 0)
        self._reduces = ReduceClocks({stage: len(ranks) for stage, ranks in schedule.reducers.items()})

    def read(self, rank: int) -> Iterator[Op]:
        """Yield the lowered list of `rank`; the machine advances as far as needed."""
        waiting = self._waiting[rank]
        while waiting or self._heads[rank] is not None:
            while waiting and self._handed_out[rank] < self._settled(rank):
                yield from self._take_recvs(rank)
                yield from waiting.popleft()
                self._handed_out[rank] += 1
            if (waiting or self._heads[rank] is not None) and not self._round():
                self._refuse()
        yield from self._take_recvs(rank)

    def _settled(self, rank: int) -> float:
        """Return the index before which no more Recvs can be inserted in the list of `rank`."""
        clocks = (self._clocks[sender][rank] for sender in self._senders[rank] if self._heads[sender] is not None)
        return min(clocks, default=inf)

    def _take_recvs(self, rank: int) -> list[Recv]:
        recvs = self._recvs[rank].pop(self._handed_out[rank], [])
        return sorted(recvs, key=lambda recv: recv.peer)

    def _round(self) -> bool:
        """Advance every rank by an op if possible; return whether any rank advanced."""
        return sum(self._advance(rank) for rank in range(self._schedule.num_ranks)) > 0

    def _advance(self, rank: int) -> bool:
        op = self._heads[rank]
        if op is None:
            return False
        clock = self._clocks[rank]
        if isinstance(op, Step) and not self._reduces.learn(rank, op.stage, clock):
            return False
        if isinstance(op, Reduce) and not op.is_over_stages:
            clock[rank] += 1
            self._reduces.tell(rank, op.stage, clock)
            self._emit(rank, [op])
            return True
        return self._compute(rank, op)

    def _compute(self, rank: int, op: Op) -> bool:
        num_stages = self._schedule.num_stages
        needed = {message: part for part in computes(op) for message in needs_from_others(part, num_stages)}
        if any(message not in self._made for message in needed):
            return False
        clock = self._clocks[rank]
        for message, part in needed.items():
            clock[:] = map(max, clock, self._made[message])
            if uses_up(part):
                del self._made[message]
        clock[rank] += 1
        self._emit(rank, [op, *self._sends(rank, op)])
        return True

    def _sends(self, rank: int, op: Op) -> Iterator[Send]:
        """Make the messages of `op`; yield the Sends to other ranks, and place their Recvs."""
        for part in computes(op):
            message = gives(part)
            if message is None or not 0 <= message.receiver < self._schedule.num_stages:
                continue
            self._made[message] = tuple(self._clocks[rank])
            peer = self._schedule.home(message.receiver, message.microbatch)
            if peer == rank:
                continue
            if peer in self._recvs:
                self._recvs[peer][self._clocks[rank][peer]].append(Recv(message, rank))
            yield Send(message, peer)

    def _emit(self, rank: int, ops: list[Op]) -> None:
        if rank in self._waiting:
            self._waiting[rank].append(ops)
        self._heads[rank] = next(self._lists[rank], None)

    def _refuse(self) -> None:
        rank, op = next((rank, op) for rank, op in enumerate(self._heads) if op is not None)
        raise NotRunnableError(
            f"{self._schedule.name}: cannot be lowered: rank {rank} waits forever at op {self._clocks[rank][rank]} "
            f"({op}); check the schedule"
        )


class ReduceClocks:
    """The joint vector clocks of replicas at their k-th Reduces of a stage; each replica learns one at its next Step.

    A clock is dropped when every replica has reached its next Reduce.

    Args:
        num_replicas: Number of ranks that reduce each stage.
    """

    def __init__(self, num_replicas: Mapping[int, int]) -> None:
        self._num_replicas = num_replicas
        self._meetings = Meetings()
        self._last: dict[tuple[int, int], MeetingKey] = {}  # of a rank and a stage
        self._told: dict[MeetingKey, tuple[int, ...]] = {}
        self._num_there: Counter[MeetingKey] = Counter()
        self._num_gone: Counter[MeetingKey] = Counter()

    def __len__(self) -> int:
        """Return the number of clocks in memory."""
        return len(self._told)

    def tell(self, rank: int, stage: int, clock: list[int]) -> None:
        """Record the clock of `rank` at its next Reduce of `stage`, for the other replicas."""
        self._leave(rank, stage)
        key = self._last[rank, stage] = self._meetings.come(rank, Reduce(stage))
        self._num_there[key] += 1
        self._told[key] = tuple(map(max, clock, self._told.get(key, clock)))

    def learn(self, rank: int, stage: int, clock: list[int]) -> bool:
        """Merge the clocks of all replicas at the last Reduce of `rank` into `clock`.

        Returns:
            Whether all replicas have reached that Reduce; if not, `clock` is unchanged.
        """
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


def _senders(schedule: Schedule) -> list[set[int]]:
    """Return, for each rank, the ranks that ever send it a message."""
    neighbours: list[set[int]] = [set() for _ in range(schedule.num_ranks)]
    for stage in range(schedule.num_stages - 1):
        for microbatch in range(lcm(len(schedule.homes[stage]), len(schedule.homes[stage + 1]))):
            ends = schedule.home(stage, microbatch), schedule.home(stage + 1, microbatch)
            neighbours[ends[0]].add(ends[1])
            neighbours[ends[1]].add(ends[0])
    return neighbours
