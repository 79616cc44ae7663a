"""A quick planner of order problems: list scheduling under the memory limits, by a few rules, the best of which counts.

Time goes from event to event. Whenever a rank is free it takes the first of these that has all it needs:

    a backward    the one deepest in its micro-batch, so that memory is given back
    a forward     the deepest too, if there is room for it, and behind it for what it needs on the rank further down
    W, Step       what nobody waits for

The rules differ in two things: whether a rank that did a backward last takes a forward before another one, and whether
it leaves W out that would not be over before the next forward or backward comes.

Room for the stages further down (a rank of v stages takes a forward of the first only if v - 1 others still fit) is
what keeps a rank from filling up with micro-batches that cannot go on: the oldest one always can.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from itertools import product
from typing import final

from pipesched.schedules import Compute, Phase
from pipesched.simulator.optimum.op_times import OpTimes, makespan
from pipesched.simulator.optimum.order_problem import OrderProblem

_NEVER = 1 << 62


def planned_times(problem: OrderProblem) -> OpTimes:
    """Return the starts of the best of the planner's orders [ticks]."""
    plans = (
        _Plan(problem, takes_turns=turns, is_patient=patient).run()
        for turns, patient in product((False, True), repeat=2)
    )
    return min(plans, key=lambda starts: makespan(problem, starts))


@final
class _Plan:
    """One walk through the batch by one rule."""

    def __init__(self, problem: OrderProblem, *, takes_turns: bool, is_patient: bool) -> None:
        self._problem, self._takes_turns, self._is_patient = problem, takes_turns, is_patient
        kinds = problem.kinds
        self._ticks = [kind.ticks for kind in kinds]
        self._rank = [kind.rank for kind in kinds]
        self._next = [problem.first(index) for index in range(len(kinds))]
        self._starts = [[0] * problem.num_microbatches for _ in kinds]
        self._followers = [
            [(arc.after, arc.ticks) for arc in problem.arcs if arc.before == index and arc.distance == 0]
            for index in range(len(kinds))
        ]
        needed = [sum(arc.distance == 0 for arc in arcs) for arcs in problem.incoming]
        self._missing = [[count] * problem.num_microbatches for count in needed]
        self._ready = [[0] * problem.num_microbatches for _ in kinds]
        self._changes, self._least_room = self._memory()
        self._left = [problem.room.limits[rank] for rank in range(problem.num_ranks)]
        self._free = [0] * problem.num_ranks
        self._last_was_backward = [False] * problem.num_ranks
        by_depth = [sorted(of_rank, reverse=True) for of_rank in problem.of_rank]
        self._backwards = [
            [k for k in order if self._is(k, Phase.BACKWARD, Phase.BACKWARD_INPUT)] for order in by_depth
        ]
        self._forwards = [[k for k in order if self._is(k, Phase.FORWARD)] for order in by_depth]
        self._others = [
            [k for k in order if k not in {*self._backwards[rank], *self._forwards[rank]}]
            for rank, order in enumerate(by_depth)
        ]

    def run(self) -> OpTimes:
        """Return the starts of all ops [ticks]."""
        events = [(0, rank) for rank in range(self._problem.num_ranks)]
        while events:
            now, rank = heappop(events)
            if self._free[rank] > now:
                continue
            kind = self._choice(rank, now)
            if kind is not None:
                self._start(kind, rank, now, events)
        return self._starts

    def _choice(self, rank: int, now: int) -> int | None:
        """Return the kind whose next op a free rank takes; None if it waits."""
        first, second = self._backwards[rank], self._forwards[rank]
        if self._takes_turns and self._last_was_backward[rank]:
            first, second = second, first
        for kind in (*first, *second):
            if self._arrival(kind) <= now and self._fits(kind, rank):
                return kind
        wait = _NEVER
        if self._is_patient:
            wait = min((self._arrival(k) for k in (*first, *second) if self._fits(k, rank)), default=_NEVER) - now
        for kind in self._others[rank]:
            if self._arrival(kind) <= now and self._ticks[kind] <= wait:
                return kind
        return None

    def _arrival(self, kind: int) -> int:
        """Return when the next op of a kind has all that it needs; `_NEVER` where that is not known yet."""
        microbatch = self._next[kind]
        if microbatch == self._problem.num_microbatches or self._missing[kind][microbatch]:
            return _NEVER
        return self._ready[kind][microbatch]

    def _fits(self, kind: int, rank: int) -> bool:
        return self._least_room[kind] <= self._left[rank]

    def _start(self, kind: int, rank: int, now: int, events: list[tuple[int, int]]) -> None:
        microbatch, end = self._next[kind], now + self._ticks[kind]
        self._starts[kind][microbatch] = now
        self._next[kind] += 1
        self._left[rank] -= self._changes[kind]
        self._free[rank] = end
        self._last_was_backward[rank] = kind in self._backwards[rank]
        heappush(events, (end, rank))
        for after, ticks in self._followers[kind]:
            self._missing[after][microbatch] -= 1
            arrival = max(self._ready[after][microbatch], end + ticks)
            self._ready[after][microbatch] = arrival
            if self._rank[after] != rank:
                heappush(events, (arrival, self._rank[after]))

    def _is(self, kind: int, *phases: Phase) -> bool:
        op = self._problem.kinds[kind].op
        return isinstance(op, Compute) and op.phase in phases

    def _memory(self) -> tuple[list[int], list[int]]:
        """Return by how much each kind changes what its rank holds, and the room that there must be before it."""
        room, kinds = self._problem.room, self._problem.kinds
        changes, least = [0] * len(kinds), [0] * len(kinds)
        on_rank = defaultdict[int, list[int]](list)
        for index in reversed(range(len(kinds))):
            op, rank = kinds[index].op, kinds[index].rank
            if not isinstance(op, Compute):
                continue
            match op.phase:
                case Phase.FORWARD:
                    changes[index] = room.saved[op.stage]
                    size = max(room.saved[op.stage], room.kept[op.stage])
                    least[index] = size + sum(on_rank[rank])
                    on_rank[rank].append(size)
                case Phase.BACKWARD_INPUT:
                    changes[index] = room.kept[op.stage] - room.saved[op.stage]
                case Phase.BACKWARD | Phase.BACKWARD_WEIGHT:
                    changes[index] = -(room.saved if op.phase is Phase.BACKWARD else room.kept)[op.stage]
        return changes, least
