"""The makespan of compute-only lists, written without any of our code's ideas: no needs(), no events, no Recv."""

from __future__ import annotations

from pipesched.profiles.clusters import Link
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Compute, Op, Overlap, Reduce, Step

Thing = tuple[str, int, int]
"""("F" or "B", the stage that makes it, micro-batch)."""


def longest_path(schedule: Schedule, costs: StageCosts, link: Link) -> float:
    """Ask the ranks in turn, each for as much as it can do, until all lists are empty."""
    table = _Table(schedule, costs, link)
    while any(table.todo):
        for rank, row in enumerate(table.todo):
            while row and table.has_done(rank, row[0]):
                pass
    return max(table.now)


class _Table:
    def __init__(self, schedule: Schedule, costs: StageCosts, link: Link) -> None:
        self.todo = [list(row) for row in schedule.ops]
        self.now = [0.0] * schedule.num_ranks
        self._last, self._costs, self._link = schedule.num_stages - 1, costs, link
        self._home = {
            (c.stage, c.microbatch): rank for rank, row in enumerate(self.todo) for op in row for c in _in(op)
        }
        self._there: dict[Thing, float] = {}
        self._free: dict[tuple[int, int], float] = {}
        self._came: dict[int, dict[int, float]] = {}
        self._sum_s: dict[int, float] = {}
        self._ring_free: dict[tuple[int, ...], float] = {}

    def has_done(self, rank: int, op: Op) -> bool:
        if isinstance(op, Reduce):
            self._come(rank, op)
        elif isinstance(op, Step):
            if op.stage in self._came and op.stage not in self._sum_s:
                return False
            self.now[rank] = max(self.now[rank], self._sum_s.get(op.stage, 0.0))
            self.now[rank] += self._costs.stages[op.stage].step_s
        elif not self._compute(rank, _in(op)):
            return False
        self.todo[rank].pop(0)
        return True

    def _come(self, rank: int, op: Reduce) -> None:
        """Each stage is reduced once: by the ranks that have a Reduce of it still, or have come to it."""
        came = self._came.setdefault(op.stage, {})
        came[rank] = self.now[rank]
        ring = tuple(r for r, row in enumerate(self.todo) if op in row or r in came)
        if len(came) < len(ring):
            return
        part_s = self._costs.stages[op.stage].weight_bytes / len(ring) / self._link.bandwidth_bytes_per_s
        rounds = 2 * (len(ring) - 1)
        begin_s = max(*came.values(), self._ring_free.get(ring, 0.0), 0.0)
        self._ring_free[ring] = begin_s + rounds * part_s
        self._sum_s[op.stage] = begin_s + rounds * (part_s + self._link.latency_s)

    def _compute(self, rank: int, parts: list[Compute]) -> bool:
        before = [thing for c in parts for thing in self._before(c)]
        if any(thing not in self._there for thing in before):
            return False
        seconds = [_seconds(c, self._costs.stages[c.stage]) for c in parts]
        hidden_s = self._costs.overlap * min(seconds) if len(parts) == 2 else 0.0
        self.now[rank] = max([self.now[rank], *(self._there[thing] for thing in before)]) + sum(seconds) - hidden_s
        for c in parts:
            if c.phase.value in "FBI":
                self._hand_on(rank, c)
        return True

    def _before(self, c: Compute) -> list[Thing]:
        """What comes from another stage; what comes from its own is earlier in the list."""
        if c.phase.value == "F" and c.stage > 0:
            return [("F", c.stage - 1, c.microbatch)]
        if c.phase.value in "BI" and c.stage < self._last:
            return [("B", c.stage + 1, c.microbatch)]
        return []

    def _hand_on(self, rank: int, c: Compute) -> None:
        letter = "F" if c.phase.value == "F" else "B"
        target = c.stage + 1 if letter == "F" else c.stage - 1
        peer = self._home.get((target, c.microbatch), rank)
        arrival_s = self.now[rank]
        if peer != rank:
            cost = self._costs.stages[min(c.stage, target)]
            num_bytes = cost.output_bytes
            if letter == "B" and cost.output_gradient_bytes is not None:
                num_bytes = cost.output_gradient_bytes
            begin_s = max(arrival_s, self._free.get((rank, peer), 0.0))
            self._free[rank, peer] = begin_s + num_bytes / self._link.bandwidth_bytes_per_s
            arrival_s = self._free[rank, peer] + self._link.latency_s
        self._there[letter, c.stage, c.microbatch] = arrival_s


def _in(op: Op) -> list[Compute]:
    return [op] if isinstance(op, Compute) else [op.first, op.second] if isinstance(op, Overlap) else []


def _seconds(c: Compute, cost: StageCost) -> float:
    kinds = ("F", "R", "B", "I", "W")
    values = (cost.forward_s, cost.forward_s, cost.backward_s, cost.backward_input_s, cost.backward_weight_s)
    return dict(zip(kinds, values, strict=True))[c.phase.value]
