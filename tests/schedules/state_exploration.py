"""What op lists can do, one small move at a time: the truth about progress, whatever the communication.

Three kinds of moves: a rank does its next op, a Send and its Recv meet, or the Reduces of all replicas of a stage do. A
list is through when every rank is at its end, every Send that must wait has met its Recv, and every Reduce its others.
Said here by conditions on moves alone, where `schedules.semantics.progress` keeps queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op, Recv, Reduce, Send, Step
from tests.schedules.brute_force import carried, made, wanted

Place = tuple[int, int]
State = tuple[tuple[int, ...], frozenset[Place]]
"""How many ops each rank has done, and which Sends, Recvs and Reduces have met their counterparts."""


def stream(rank: int, op: Send | Recv, communication: str) -> object:
    """Name what the op has to queue in; a name of its own where it need not."""
    match communication:
        case "buffered":
            return (rank, op.peer) if isinstance(op, Recv) else object()
        case "channel" | "device":
            return (rank, op.peer, type(op))
        case "pair":
            return (rank, op.peer)
        case "rank" | "batched":
            return rank
    raise AssertionError(communication)


def batches(row: Iterable[Op], communication: str) -> list[list[int]]:
    """Return the positions of Sends and Recvs: one by one, or neighbours together."""
    places = [list(group) for _, group in groupby(enumerate(row), lambda pair: isinstance(pair[1], Send | Recv))]
    runs = [[index for index, op in group] for group in places if isinstance(group[0][1], Send | Recv)]
    return runs if communication == "batched" else [[index] for run in runs for index in run]


class Model:
    """The conditions of every move, worked out beforehand."""

    def __init__(self, schedule: Schedule, communication: str) -> None:
        self.rows, self.communication = schedule.ops, communication
        self.batch: dict[Place, list[Place]] = {}
        self.ahead: dict[Place, list[Place]] = {}
        self.partner: dict[Place, Place] = {}
        self._queue(communication)
        self._pair()
        self.circles = self._gather()
        self.suppliers: dict[tuple[int, tuple[str, int, int]], list[Place]] = {}
        for rank, row in enumerate(self.rows):
            for index, op in enumerate(row):
                for thing in made(op):
                    self.suppliers.setdefault((rank, thing), []).append((rank, index))
                if isinstance(op, Recv) and (rank, index) in self.partner:
                    other = self.partner[rank, index]
                    if carried(self.rows[other[0]][other[1]]) == carried(op):
                        self.suppliers.setdefault((rank, carried(op)), []).append((rank, index))
        self.wanted = [[wanted(op, schedule.num_stages) for op in row] for row in self.rows]

    def _queue(self, communication: str) -> None:
        for rank, row in enumerate(self.rows):
            last: dict[object, list[Place]] = {}
            for run in batches(row, communication):
                places = [(rank, index) for index in run]
                name = stream(rank, row[run[0]], communication)
                for place in places:
                    self.batch[place], self.ahead[place] = places, last.get(name, [])
                last[name] = places

    def _pair(self) -> None:
        ends: dict[tuple[type, int, int], list[Place]] = {}
        for rank, index in sorted(self.batch):
            op = self.rows[rank][index]
            channel = (rank, op.peer) if isinstance(op, Send) else (op.peer, rank)
            ends.setdefault((type(op), *channel), []).append((rank, index))
        for (kind, *channel), places in ends.items():
            others = ends.get((Recv if kind is Send else Send, *channel), [])
            self.partner.update(zip(places, others, strict=False))

    def _gather(self) -> list[list[Place]]:
        """Return the k-th Reduces of each stage, where every rank that reduces it has as many."""
        places_of: dict[Op, list[list[Place]]] = {}
        for rank, row in enumerate(self.rows):
            for op in {op for op in row if isinstance(op, Reduce)}:
                places_of.setdefault(op, []).append([(rank, index) for index, other in enumerate(row) if other == op])
        return [list(places) for lists in places_of.values() for places in zip(*lists, strict=False)]

    def start(self) -> State:
        return (0,) * len(self.rows), frozenset()

    def moves(self, state: State) -> list[State]:
        """Return what can happen next, each on its own."""
        at, met = state
        states = []
        for rank, row in enumerate(self.rows):
            if at[rank] < len(row) and (together := self._can_do(rank, row[at[rank]], state)):
                states.append((tuple(n + (r in together) for r, n in enumerate(at)), met))
        for place, other in self.partner.items():
            if place not in met and place < other and self._under_way(place, state) and self._under_way(other, state):
                states.append((at, met | {place, other}))
        for circle in self.circles:
            if circle[0] not in met and all(place[1] < at[place[0]] and self._is_first(place, met) for place in circle):
                states.append((at, met | set(circle)))
        return states

    def _can_do(self, rank: int, op: Op, state: State) -> set[int]:
        """Return the ranks that do the next op of `rank` together; none if it must wait."""
        at, met = state
        if isinstance(op, Step):
            before = [(rank, index) for index in range(at[rank]) if self.rows[rank][index] == Reduce(op.stage)]
            return {rank} if met.issuperset(before) else set()
        things = self.wanted[rank][at[rank]]
        if all(any(self.is_over(p, state) for p in self.suppliers.get((rank, thing), ())) for thing in things):
            return {rank}
        return set()

    def _is_first(self, place: Place, met: frozenset[Place]) -> bool:
        """Whether a Reduce may go on where a device works through its collectives in order."""
        rank, last = place
        before = [(rank, index) for index in range(last) if isinstance(self.rows[rank][index], Reduce)]
        return self.communication in ("buffered", "channel") or met.issuperset(before)

    def _under_way(self, place: Place, state: State) -> bool:
        last = self.batch[place][-1]
        return state[0][place[0]] > last[1] and all(self.is_over(before, state) for before in self.ahead[place])

    def is_over(self, place: Place, state: State) -> bool:
        if place in self.batch:
            return all(mate in state[1] for mate in self.batch[place])
        rank, index = place
        if index < len(self.rows[rank]) and isinstance(self.rows[rank][index], Reduce):
            return place in state[1]
        return index < state[0][rank]

    def is_through(self, state: State) -> bool:
        if any(n < len(row) for n, row in zip(state[0], self.rows, strict=True)):
            return False
        reduces = {(r, i) for r, row in enumerate(self.rows) for i, op in enumerate(row) if isinstance(op, Reduce)}
        if not reduces <= state[1]:
            return False
        sends = [place for place in self.batch if isinstance(self.rows[place[0]][place[1]], Send)]
        return self.communication == "buffered" or all(self.is_over(place, state) for place in sends)

    def end(self) -> State:
        """Return where it ends if everything that can happen does."""
        state = self.start()
        while following := self.moves(state):
            done = tuple(max(column) for column in zip(*(at for at, _ in following), strict=True))
            state = done, frozenset().union(*(met for _, met in following))
        return state

    def ends(self) -> set[State]:
        """Return where it can end, in whatever order things happen: every order is tried."""
        seen, todo, dead_ends = {self.start()}, [self.start()], set()
        while todo:
            state = todo.pop()
            following = self.moves(state)
            if not following:
                dead_ends.add(state)
            todo += [new for new in following if new not in seen]
            seen.update(following)
        return dead_ends
