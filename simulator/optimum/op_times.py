"""Times of the ops of an order problem: the earliest, what comes after each at least, those of lists, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from pipesched.schedules import Compute, Op, Schedule, ScheduleTraits, Step
from pipesched.simulator.optimum.order_problem import OrderProblem, of_one_kind

OpTimes: TypeAlias = list[list[int]]
"""``times[kind][microbatch]``, in ticks; where a kind has no op of a micro-batch it means nothing."""


def earliest_starts(problem: OrderProblem) -> OpTimes:
    """Return when each op can start at the earliest, if every rank could do any number of ops at once."""
    starts = _nothing(problem)
    for microbatch in range(problem.num_microbatches):
        for kind, arcs in enumerate(problem.incoming):
            for arc in arcs:
                before = microbatch - arc.distance
                if before >= problem.first(arc.before) and microbatch >= problem.first(kind):
                    ready = starts[arc.before][before] + problem.kinds[arc.before].ticks + arc.ticks
                    starts[kind][microbatch] = max(starts[kind][microbatch], ready)
    return starts


def least_tails(problem: OrderProblem) -> OpTimes:
    """Return the ticks from the end of each op to the end of all, at least, if ranks could do any number at once."""
    tails = _nothing(problem)
    for microbatch in reversed(range(problem.num_microbatches)):
        for kind in reversed(range(len(problem.kinds))):
            for arc in problem.incoming[kind]:
                before = microbatch - arc.distance
                if before >= problem.first(arc.before) and microbatch >= problem.first(kind):
                    behind = arc.ticks + problem.kinds[kind].ticks + tails[kind][microbatch]
                    tails[arc.before][before] = max(tails[arc.before][before], behind)
    return tails


def listed_times(problem: OrderProblem, schedule: Schedule) -> OpTimes:
    """Return when each op of a schedule starts, every rank doing its list without a pause that it need not make.

    Args:
        problem: Of the same ops; the schedule may be made for other costs.
        schedule: As `orderable` returns it, of lists that can run. What it holds is not looked at.
    """
    starts, free = _nothing(problem), [0] * problem.num_ranks
    position, ended = [0] * problem.num_ranks, [0] * len(problem.kinds)
    rows = [[kind for op in row if (kind := _kind(problem, op)) is not None] for row in schedule.ops]
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while position[rank] < len(row):
                kind = row[position[rank]]
                microbatch = ended[kind] + problem.first(kind)
                arcs = [arc for arc in problem.incoming[kind] if arc.distance == 0]
                if any(ended[arc.before] + problem.first(arc.before) <= microbatch for arc in arcs):
                    break
                ready = [starts[a.before][microbatch] + problem.kinds[a.before].ticks + a.ticks for a in arcs]
                starts[kind][microbatch] = max(free[rank], *ready, 0)
                free[rank] = starts[kind][microbatch] + problem.kinds[kind].ticks
                ended[kind] += 1
                position[rank] += 1
                moved = True
    return starts


def makespan(problem: OrderProblem, starts: OpTimes) -> int:
    """Return the end of the last op [ticks]."""
    return max(starts[index][-1] + kind.ticks for index, kind in enumerate(problem.kinds))


def schedule_of_times(problem: OrderProblem, schedule: Schedule, starts: OpTimes, name: str) -> Schedule:
    """Return the lists of `schedule` with their ops in the order of their starts; Steps without time come last."""
    rows: list[tuple[Op, ...]] = []
    for rank, kinds in enumerate(problem.of_rank):
        timed = sorted(
            (starts[kind][microbatch], starts[kind][microbatch] + problem.kinds[kind].ticks, microbatch, kind)
            for kind in kinds
            for microbatch in range(problem.first(kind), problem.num_microbatches)
        )
        ops: list[Op] = [problem.op(kind, microbatch) for *_, microbatch, kind in timed]
        left = (op for op in schedule.ops[rank] if isinstance(op, Step) and op not in problem.index_of)
        rows.append((*ops, *left))
    return replace(
        schedule, name=name, lists=tuple(rows), is_lowered=False, origin=None, traits=ScheduleTraits(), layout=None
    )


def _nothing(problem: OrderProblem) -> OpTimes:
    return [[0] * problem.num_microbatches for _ in problem.kinds]


def _kind(problem: OrderProblem, op: Op) -> int | None:
    return problem.index_of.get(of_one_kind(op)) if isinstance(op, Compute | Step) else None
