"""A quick planner of order problems: list scheduling under the memory limits, by a few rules, the best of which counts.

Time goes from event to event. A rank that is free takes a forward or backward that has all it needs and fits into its
memory, by one of three rules; if there is none a W or a Step, which nobody else waits for:

    depth     the one deepest in its micro-batch, so that memory is given back
    turns     a forward after a backward and a backward after a forward, if it can be; of each the deepest
    due       the one that is due first, if the micro-batches came as far apart as the busiest rank works on each, and
              each took twice as long on its way as it could

A patient rank leaves out a W that would not be over before the next forward or backward comes.

A rank of v stages takes a forward of the first only if one of each of the v - 1 others still fits. That keeps it from
filling up with micro-batches that cannot go on: the oldest one always can.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal, NamedTuple, final

from pipesched.schedules import Compute, Phase
from pipesched.simulator.optimum.op_times import OpTimes, earliest_starts, objective_ticks
from pipesched.simulator.optimum.order_problem import OrderProblem

_NEVER = 1 << 62
_STRETCH = 2


class _Rule(NamedTuple):
    """How a rank chooses, and whether it leaves out a W that would delay others."""

    choice: Literal["turns", "due", "depth"]
    is_patient: bool


_RULES = (_Rule("turns", False), _Rule("due", False), _Rule("depth", True))


def planned_times(problem: OrderProblem) -> OpTimes:
    """Return the starts of the best of the planner's orders [ticks]."""
    return min((_Plan(problem, rule).run() for rule in _RULES), key=lambda starts: objective_ticks(problem, starts))


@final
class _Plan:
    """One walk through the batch by one rule."""

    def __init__(self, problem: OrderProblem, rule: _Rule) -> None:
        self._problem, self._rule = problem, rule
        kinds, num_microbatches = problem.kinds, problem.num_microbatches
        self._ticks = [kind.ticks for kind in kinds]
        self._next = [problem.first(kind) for kind in range(len(kinds))]
        self._starts = [[0] * num_microbatches for _ in kinds]
        waits = [[arc for arc in arcs if arc.distance == 0] for arcs in problem.incoming]
        self._missing = [[len(arcs)] * num_microbatches for arcs in waits]
        self._ready = [[0] * num_microbatches for _ in kinds]
        self._followers = [
            [(arc.after, arc.ticks, kinds[arc.after].rank) for arcs in waits for arc in arcs if arc.before == kind]
            for kind in range(len(kinds))
        ]
        self._arrivals = [self._arrival(kind) for kind in range(len(kinds))]
        self._changes, self._least_room = _memory(problem)
        self._room = [*problem.room.limits]
        self._free = [0] * problem.num_ranks
        self._was_backward = [False] * problem.num_ranks
        self._urgent, self._others = _by_urgency(problem)
        ops = {index: kind.op for index, kind in enumerate(kinds)}
        self._forwards = {k for k, op in ops.items() if isinstance(op, Compute) and op.phase is Phase.FORWARD}
        work = [sum(kinds[kind].ticks for kind in of_rank) for of_rank in problem.of_rank]
        self._interval = max(work, default=0)
        self._due = [_STRETCH * starts[problem.first(kind)] for kind, starts in enumerate(earliest_starts(problem))]

    def run(self) -> OpTimes:
        """Return the starts of all ops [ticks]."""
        events = [(0, rank) for rank in range(self._problem.num_ranks)]
        while events:
            now, rank = heappop(events)
            if self._free[rank] <= now:
                kind = self._choice(rank, now)
                if kind is not None:
                    self._start(kind, rank, now, events)
        return self._starts

    def _choice(self, rank: int, now: int) -> int | None:
        """Return the kind whose next op a free rank takes; None if it waits."""
        arrivals, room = self._arrivals, self._room[rank]
        there = [kind for kind in self._urgent[rank] if arrivals[kind] <= now and self._least_room[kind] <= room]
        if there and self._rule.choice == "due":
            return min(there, key=lambda kind: self._next[kind] * self._interval + self._due[kind])
        if there and self._rule.choice == "depth":
            return there[0]
        if there:
            turns = (kind for kind in there if (kind in self._forwards) == self._was_backward[rank])
            return next(turns, there[0])
        wait = _NEVER
        if self._rule.is_patient:
            coming = (arrivals[kind] for kind in self._urgent[rank] if self._least_room[kind] <= room)
            wait = min(coming, default=_NEVER) - now
        for kind in self._others[rank]:
            if arrivals[kind] <= now and self._ticks[kind] <= wait:
                return kind
        return None

    def _arrival(self, kind: int) -> int:
        """Return when the next op of a kind has all that it needs; `_NEVER` where that is not known yet."""
        microbatch = self._next[kind]
        if microbatch == self._problem.num_microbatches or self._missing[kind][microbatch]:
            return _NEVER
        return self._ready[kind][microbatch]

    def _start(self, kind: int, rank: int, now: int, events: list[tuple[int, int]]) -> None:
        microbatch, end = self._next[kind], now + self._ticks[kind]
        self._starts[kind][microbatch] = now
        self._next[kind] += 1
        self._arrivals[kind] = self._arrival(kind)
        self._room[rank] -= self._changes[kind]
        self._free[rank] = end
        if kind in self._urgent[rank]:
            self._was_backward[rank] = kind not in self._forwards
        heappush(events, (end, rank))
        for after, ticks, peer in self._followers[kind]:
            self._missing[after][microbatch] -= 1
            self._ready[after][microbatch] = max(self._ready[after][microbatch], end + ticks)
            if self._next[after] == microbatch:
                self._arrivals[after] = self._arrival(after)
            if peer != rank:
                heappush(events, (self._ready[after][microbatch], peer))


def _by_urgency(problem: OrderProblem) -> tuple[list[list[int]], list[list[int]]]:
    """Return, by rank, the kinds that others wait for, the deepest first, and those that nobody waits for."""
    urgent, others = list[list[int]](), list[list[int]]()
    for of_rank in problem.of_rank:
        phases = {kind: op.phase for kind in of_rank if isinstance(op := problem.kinds[kind].op, Compute)}
        urgent.append(sorted((k for k, p in phases.items() if p is not Phase.BACKWARD_WEIGHT), reverse=True))
        others.append([kind for kind in of_rank if kind not in urgent[-1]])
    return urgent, others


def _memory(problem: OrderProblem) -> tuple[list[int], list[int]]:
    """Return by how much each kind changes what its rank holds, and the room that there must be before it."""
    room = problem.room
    changes, least = [0] * len(problem.kinds), [0] * len(problem.kinds)
    deeper = [0] * problem.num_ranks
    for index, kind in reversed([*enumerate(problem.kinds)]):
        if not isinstance(kind.op, Compute):
            continue
        saved, kept = room.saved[kind.op.stage], room.kept[kind.op.stage]
        match kind.op.phase:
            case Phase.FORWARD:
                changes[index] = saved
                deeper[kind.rank] += max(saved, kept)
                least[index] = deeper[kind.rank]
            case Phase.BACKWARD_INPUT:
                changes[index] = kept - saved
                least[index] = max(0, kept - saved)
            case Phase.BACKWARD_WEIGHT:
                changes[index] = -kept
            case _:
                changes[index] = -saved
    return changes, least
