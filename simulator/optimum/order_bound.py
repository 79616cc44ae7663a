"""A lower bound of an order problem, by each rank alone: Jackson's preemptive schedule.

Every op of a rank has a head, the earliest arrival of its inputs, and a tail, the work that must follow it. A rank that
may interrupt its ops, and always runs the ready op with the longest tail, ends all ops and tails as early as possible.
A rank that cannot interrupt ends no earlier (Carlier, EJOR 1982). Heads and tails are
longest paths in which memory counts as well: the forward that finds no room waits for a backward. In a repeated batch,
heads and tails count within the rank's own time, from its first op to its last.

Lists that no order problem covers have a bound, too: no order of their ops on their ranks takes less, whatever it
holds. Each rank and each device is bounded alone. Any op may be hidden behind another as far as an Overlap hides one.
Waits for memory, weight versions, reductions and other messages on a link are left out, which makes nothing longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple, TypeAlias, TypeVar

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import AnyWeightsOp, Compute, Overlap, Phase, Recv, WeightsOp, gives, needs
from pipesched.simulator.optimum.op_times import OpTimes, earliest_starts, least_tails
from pipesched.simulator.optimum.order_problem import OrderProblem, travel_s

_Time = TypeVar("_Time", int, float)
"""Ticks or seconds."""


def least_ticks(problem: OrderProblem) -> int:
    """Return a lower bound on the ticks of any order."""
    return max(least_ticks_of_ranks(problem))


def least_ticks_of_ranks(problem: OrderProblem) -> list[int]:
    """Return a lower bound on the ticks of any order for each rank; it follows from the ops of this rank."""
    problem = problem.relaxed
    ranks = range(problem.num_ranks)
    if not problem.is_repeated:
        times = earliest_starts(problem), least_tails(problem)
        return [_least_of_jobs(_jobs(problem, rank, *times)) for rank in ranks]
    return [
        _least_of_jobs(_jobs(problem, rank, earliest_starts(problem, rank), least_tails(problem, rank)))
        for rank in ranks
    ]


def _jobs(problem: OrderProblem, rank: int, heads: OpTimes, tails: OpTimes) -> list[tuple[int, int, int]]:
    """Return the (head, length, tail) of each op of a rank."""
    return [
        (heads[kind][microbatch], problem.kinds[kind].ticks, tails[kind][microbatch])
        for kind in problem.of_rank[rank]
        for microbatch in range(problem.first(kind), problem.num_microbatches)
    ]


def _least_of_jobs(jobs: list[tuple[_Time, _Time, _Time]]) -> _Time:
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


class _Work(NamedTuple):
    """The n-th thing that a rank does."""

    rank: int
    number: int
    op: Compute | AnyWeightsOp


_Waits: TypeAlias = Mapping[_Work, Mapping[_Work, float]]
"""``waits[after][before]``: the seconds that lie between the end of one and the start of another, at least."""


def least_seconds_of_lists(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> float:
    """Return a lower bound on the makespan of a schedule's ops on their ranks, in any order [s].

    Args:
        schedule: Any lists that can run, with replicas, weight versions or ranks that share a device, too.
        costs: Seconds of every op, and bytes of messages.
        cluster: Speeds and links.

    Raises:
        NotRunnableError: The lists cannot finish.
        ProfileError: The costs lack the seconds of an op.
    """
    lists = lower(schedule)
    devices, speeds = lists.rank_to_device, [device.speed for device in cluster.devices]
    waits = _waits(lists, costs, cluster)
    seconds = {work: costs.seconds(work.op) / speeds[devices[work.rank]] for work in waits}
    heads, tails = dict.fromkeys(waits, 0.0), dict.fromkeys(waits, 0.0)
    order = [*TopologicalSorter(waits).static_order()]
    for work in order:
        for before, between_s in waits[work].items():
            heads[work] = max(heads[work], heads[before] + seconds[before] + between_s)
    for work in reversed(order):
        for before, between_s in waits[work].items():
            tails[before] = max(tails[before], between_s + seconds[work] + tails[work])
    of_one = defaultdict[tuple[str, int], list[tuple[float, float, float]]](list)
    for work in waits:
        length_s = seconds[work] * (1 - costs.overlap / 2)  # two ops hide at most that share of their sum
        share_s = length_s * costs.stages[work.op.stage].utilisation
        of_one["rank", work.rank].append((heads[work], length_s, tails[work]))
        of_one["device", devices[work.rank]].append((heads[work], share_s, tails[work]))
    longest_s = max((heads[work] + seconds[work] + tails[work] for work in waits), default=0.0)
    return max([longest_s, *map(_least_of_jobs, of_one.values())])


def _waits(lists: Schedule, costs: StageCosts, cluster: Cluster) -> _Waits:
    """Return the waits of each op, in lists with their communication."""
    works = [work for rank in range(lists.num_ranks) for work in _works(lists, rank)]
    makers = {(work.rank, gives(work.op)): work for work in works if isinstance(work.op, Compute)}
    sources = [{op.message: op.peer for op in row if isinstance(op, Recv)} for row in lists.ops]
    rebuilding = {
        (work.rank, work.op.stage, work.op.microbatch): work
        for work in works
        if isinstance(work.op, Compute) and work.op.phase is Phase.RECOMPUTE
    }

    def before(work: _Work) -> Iterator[tuple[_Work, float]]:
        rank, op = work.rank, work.op
        if not isinstance(op, Compute):
            return
        for message in needs(op, lists.num_stages):
            peer = sources[rank].get(message, rank)
            yield makers[peer, message], travel_s(message, peer, rank, lists, costs, cluster)
        again = rebuilding.get((rank, op.stage, op.microbatch))
        if again is not None and op.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT):
            yield again, 0.0

    return {work: dict(before(work)) for work in works}


def _works(lists: Schedule, rank: int) -> Iterator[_Work]:
    ops = (part for op in lists.ops[rank] for part in ((op.first, op.second) if isinstance(op, Overlap) else (op,)))
    for number, op in enumerate(ops):
        if isinstance(op, Compute | WeightsOp):
            yield _Work(rank, number, op)
