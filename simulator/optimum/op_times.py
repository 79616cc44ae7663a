"""Times of the ops of an order problem: earliest starts, least tails, and the conversion to and from lists.

Lists whose batch is repeated without a pause have a period: a rank begins the next batch when it has ended this one.
If the ranks begin at times b, they end at A b in max-plus algebra (max is its sum, + its product), where A has the
longest paths from rank to rank. The period is the eigenvalue of A, the largest mean weight of a cycle. If the ranks
begin at an eigenvector, every batch repeats the previous batch one period later.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Compute, Op, Step
from pipesched.simulator.optimum.order_problem import OrderProblem, of_one_kind

OpTimes: TypeAlias = list[list[int]]
"""``times[kind][microbatch]``, in ticks; where a kind has no op of a micro-batch it means nothing. A kind that is left
out has none."""
_FAR = 1 << 60
"""Ticks before all others."""


def earliest_starts(problem: OrderProblem, rank: int | None = None) -> OpTimes:
    """Return the earliest start of each op [ticks], if every rank could run any number of ops at once.

    Args:
        problem: The problem.
        rank: The rank whose first op starts at 0, or None to start all ops at 0 or later. Ops that wait for no op of
            the rank get a start far below 0.
    """
    starts = _begun(problem, rank)
    rows = [
        (
            starts[kind],
            [(starts[a.before], problem.kinds[a.before].ticks + a.ticks, a.distance, problem.since(a)) for a in arcs],
        )
        for kind, arcs in enumerate(problem.incoming)
        if arcs
    ]
    for microbatch in range(problem.num_microbatches):
        for row, arcs in rows:
            latest = row[microbatch]
            for others, length, distance, since in arcs:
                before = microbatch - distance
                if before >= since and others[before] + length > latest:
                    latest = others[before] + length
            row[microbatch] = latest
    return starts


def least_tails(problem: OrderProblem, rank: int | None = None) -> OpTimes:
    """Return a lower bound on the ticks from the end of each op to the end of all ops.

    The bound assumes that a rank can run any number of ops at once.

    Args:
        problem: The problem.
        rank: The rank whose last end counts, or None for the end of all ranks.
    """
    tails = _begun(problem, rank)
    outgoing = list[list[tuple[list[int], int, int, int]]]([] for _ in problem.kinds)
    for arc in problem.arcs:
        length = arc.ticks + problem.kinds[arc.after].ticks
        outgoing[arc.before].append((tails[arc.after], length, arc.distance, problem.since(arc)))
    rows = [*zip(tails, outgoing, strict=True)][::-1]
    for microbatch in reversed(range(problem.num_microbatches)):
        for row, arcs in rows:
            longest = row[microbatch]
            for others, length, distance, since in arcs:
                after = microbatch + distance
                if microbatch >= since and after < problem.num_microbatches and others[after] + length > longest:
                    longest = others[after] + length
            row[microbatch] = longest
    return tails


def _begun(problem: OrderProblem, rank: int | None) -> OpTimes:
    return [[0 if rank in (None, kind.rank) else -_FAR] * problem.num_microbatches for kind in problem.kinds]


def listed_times(problem: OrderProblem, schedule: Schedule) -> OpTimes:
    """Return the start of each op of a schedule if every rank runs its list without needless pauses [ticks].

    Args:
        problem: Of the same ops; the schedule may be made for other costs.
        schedule: Lists that can run, from `orderable`. Memory is not checked.
    """
    return _settled_times(
        problem, [[kind for op in row if (kind := _kind(problem, op)) is not None] for row in schedule.ops]
    )


def tightened_times(problem: OrderProblem, starts: OpTimes) -> OpTimes:
    """Return the start of each op if every rank keeps the order of `starts` and makes no needless pause [ticks]."""
    return _settled_times(problem, [[kind for kind, _ in row] for row in _rank_orders(problem, starts)])


def _settled_times(problem: OrderProblem, rows: list[list[int]]) -> OpTimes:
    """Return the starts of the ops in lists; for a repeated batch, the starts in the steady state."""
    begins = [0] * problem.num_ranks
    if problem.is_repeated:
        ways = _ways(problem, rows)
        period = math.ceil(_largest_cycle_mean(ways))
        for _ in range(problem.num_ranks):
            begins = [
                max([begin, *(way - period + other for way, other in zip(row, begins, strict=True))])
                for begin, row in zip(begins, ways, strict=True)
            ]
    return _times_in_order(problem, rows, begins)


def _ways(problem: OrderProblem, rows: list[list[int]]) -> list[list[int]]:
    """Return ``ways[r][q]``: the least ticks from the beginning of rank q to the end of rank r."""
    ranks = range(problem.num_ranks)
    columns = []
    for source in ranks:
        starts = _times_in_order(problem, rows, [0 if rank == source else -_FAR for rank in ranks])
        columns.append([_end(problem, starts, rank) for rank in ranks])
    return [[column[rank] for column in columns] for rank in ranks]


def _largest_cycle_mean(ways: list[list[int]]) -> Fraction:
    """Return the largest mean of a cycle, by Karp's recursion; every rank has a cycle of length 1."""
    size = len(ways)
    longest = [[0] * size]
    for _ in range(size):
        longest.append([max(way + last for way, last in zip(row, longest[-1], strict=True)) for row in ways])
    return max(
        min(Fraction(longest[size][rank] - longest[k][rank], size - k) for k in range(size)) for rank in range(size)
    )


def _times_in_order(problem: OrderProblem, rows: list[list[int]], begins: list[int]) -> OpTimes:
    """Return the starts of ops if each rank runs kinds in the order of `rows`, and micro-batches of a kind in order."""
    starts, free = _nothing(problem), [*begins]
    position, ended = [0] * problem.num_ranks, [problem.first(kind) for kind in range(len(problem.kinds))]
    listed = {kind for row in rows for kind in row}
    waits = [[arc for arc in arcs if not arc.distance and arc.before in listed] for arcs in problem.incoming]
    has_moved = True
    while has_moved:
        has_moved = False
        for rank, row in enumerate(rows):
            while position[rank] < len(row):
                kind = row[position[rank]]
                microbatch = ended[kind]
                if any(ended[arc.before] <= microbatch for arc in waits[kind]):
                    break
                ready = (starts[a.before][microbatch] + problem.kinds[a.before].ticks + a.ticks for a in waits[kind])
                starts[kind][microbatch] = max([free[rank], *ready])
                free[rank] = starts[kind][microbatch] + problem.kinds[kind].ticks
                ended[kind] += 1
                position[rank] += 1
                has_moved = True
    return [row if kind in listed else [] for kind, row in enumerate(starts)]


def _rank_orders(problem: OrderProblem, starts: OpTimes) -> list[list[tuple[int, int]]]:
    """Return the (kind, micro-batch) of each rank's ops in the order of their starts."""
    rows = []
    for kinds in problem.of_rank:
        timed = sorted(
            (starts[kind][microbatch], starts[kind][microbatch] + problem.kinds[kind].ticks, microbatch, kind)
            for kind in kinds
            for microbatch in range(problem.first(kind), len(starts[kind]))
        )
        rows.append([(kind, microbatch) for *_, microbatch, kind in timed])
    return rows


def objective_ticks(problem: OrderProblem, starts: OpTimes) -> int:
    """Return the end of the last op; for a repeated batch, the longest time from a rank's first op to its last."""
    ranks = range(problem.num_ranks)
    if not problem.is_repeated:
        return max(_end(problem, starts, rank) for rank in ranks)
    return max(_end(problem, starts, rank) - _begin(problem, starts, rank) for rank in ranks)


def _begin(problem: OrderProblem, starts: OpTimes, rank: int) -> int:
    return min((starts[kind][problem.first(kind)] for kind in problem.of_rank[rank] if starts[kind]), default=0)


def _end(problem: OrderProblem, starts: OpTimes, rank: int) -> int:
    ends = (starts[kind][-1] + problem.kinds[kind].ticks for kind in problem.of_rank[rank] if starts[kind])
    return max(ends, default=0)


def schedule_of_times(problem: OrderProblem, schedule: Schedule, starts: OpTimes, name: str) -> Schedule:
    """Return the lists of `schedule` with their ops in the order of their starts.

    Steps without time come as early as possible, to free gradients.
    """
    rows: list[tuple[Op, ...]] = []
    for rank, row in enumerate(_rank_orders(problem, starts)):
        ops: list[Op] = [problem.op(kind, microbatch) for kind, microbatch in row]
        for op in schedule.ops[rank]:
            if isinstance(op, Step) and op not in problem.index_of:
                last = max(place for place, other in enumerate(ops) if _of_stage(other, op.stage))
                ops.insert(last + 1, op)
        rows.append(tuple(ops))
    return Schedule(
        name, schedule.num_stages, schedule.num_microbatches, tuple(rows), schedule.rank_to_device, schedule.width
    )


def _of_stage(op: Op, stage: int) -> bool:
    return isinstance(op, Compute) and op.stage == stage


def _nothing(problem: OrderProblem) -> OpTimes:
    return [[0] * problem.num_microbatches for _ in problem.kinds]


def _kind(problem: OrderProblem, op: Op) -> int | None:
    return problem.index_of.get(of_one_kind(op)) if isinstance(op, Compute | Step) else None
