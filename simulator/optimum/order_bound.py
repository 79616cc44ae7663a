"""A lower bound of an order problem, by each rank alone: Jackson's preemptive schedule.

Every op of a rank has a head, the earliest arrival of its inputs, and a tail, the work that must follow it. A rank that
may interrupt its ops, and always runs the ready op with the longest tail, ends all
ops and tails as early as can be; no rank that may not interrupt is earlier (Carlier, EJOR 1982). Heads and tails are
longest paths in which memory counts as well: the forward that finds no room waits for a backward. In a repeated batch,
heads and tails count within the rank's own time, from its first op to its last.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TypeVar

from pipesched.simulator.optimum.op_times import OpTimes, earliest_starts, least_tails
from pipesched.simulator.optimum.order_problem import OrderProblem

_Time = TypeVar("_Time", int, float)
"""Ticks or seconds."""


def least_ticks(problem: OrderProblem) -> int:
    """Return ticks that no order is shorter than."""
    return max(least_ticks_of_ranks(problem))


def least_ticks_of_ranks(problem: OrderProblem) -> list[int]:
    """Return of each rank the ticks that no order is shorter than, as far as that rank shows it."""
    problem = problem.relaxed
    ranks = range(problem.num_ranks)
    if not problem.is_repeated:
        times = earliest_starts(problem), least_tails(problem)
        return [least_of_jobs(_jobs(problem, rank, *times)) for rank in ranks]
    return [
        least_of_jobs(_jobs(problem, rank, earliest_starts(problem, rank), least_tails(problem, rank)))
        for rank in ranks
    ]


def _jobs(problem: OrderProblem, rank: int, heads: OpTimes, tails: OpTimes) -> list[tuple[int, int, int]]:
    """Return the (head, length, tail) of each op of a rank."""
    return [
        (heads[kind][microbatch], problem.kinds[kind].ticks, tails[kind][microbatch])
        for kind in problem.of_rank[rank]
        for microbatch in range(problem.first(kind), problem.num_microbatches)
    ]


def least_of_jobs(jobs: list[tuple[_Time, _Time, _Time]]) -> _Time:
    """Return the end of Jackson's preemptive schedule of one or more (head, length, tail)."""
    jobs.sort()
    waiting: list[tuple[_Time, _Time]] = []
    position = 0
    now = end = jobs[0][0]
    size = len(jobs)
    while position < size or waiting:
        if not waiting:
            now = max(now, jobs[position][0])
        while position < size and jobs[position][0] <= now:
            _, length, tail = jobs[position]
            heappush(waiting, (-tail, length))
            position += 1
        tail, left = waiting[0]
        if position < size and jobs[position][0] < now + left:
            heapreplace(waiting, (tail, now + left - jobs[position][0]))
            now = jobs[position][0]
        else:
            heappop(waiting)
            now += left
        end = max(end, now - tail)
    return end
