"""A lower bound of an order problem by both ends of the batch, each solved with CP-SAT on its own.

    ranks   |<-- first ticks -->|             anything            |<-- last ticks -->|
            |    idle at least  |                                 |  idle at least   |

Whatever the middle is like, memory and the way down the ranks leave some idle time in the first ticks, and the way
back in the last ticks. The busiest ranks need at least their work plus the least idle time of both ends, shared by all
of these ranks. An end has few micro-batches, so CP-SAT finds its least idle time even if the whole batch is too large.

The last ticks are the first ticks of the reversed problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from pipesched.simulator.optimum.held_parts import HeldPart, held_parts
from pipesched.simulator.optimum.op_times import OpTimes, earliest_starts, least_tails, objective_ticks
from pipesched.simulator.optimum.order_problem import OrderProblem

_BUSIEST = 0.99
"""Ranks count as busiest if they have at least this share of the largest work."""


class _End(NamedTuple):
    """One end of the batch; micro-batches and times are counted from this end.

    Attributes:
        heads: Earliest start of each op.
        hint: Starts in a known order.
        parts: The memory parts of each rank.
        is_last: Whether this is the end of the batch, and not its start.
    """

    heads: OpTimes
    hint: OpTimes
    parts: tuple[tuple[HeldPart, ...], ...]
    is_last: bool


_Begun: TypeAlias = dict[tuple[int, int], tuple[Any, Any]]
"""By kind and micro-batch when an op starts, and whether it does so in the ticks that count."""
Solve: TypeAlias = Callable[[Any], Any]
"""Solves a program in a share of the time, and returns the solver, or None if it did not get anywhere."""


def bound_by_ends(cp_model: Any, problem: OrderProblem, starts: OpTimes, bound: int, solve: Solve) -> Iterator[int]:
    """Yield ever better bounds [ticks], for ever longer ends.

    Args:
        cp_model: OR-tools' module.
        problem: One batch, without anything that may be left out.
        starts: A known order.
        bound: The best known bound [ticks].
        solve: Is called for every end.
    """
    ranks = range(problem.num_ranks)
    works = [
        sum(problem.kinds[k].ticks * (problem.num_microbatches - problem.first(k)) for k in problem.of_rank[rank])
        for rank in ranks
    ]
    busiest = frozenset(rank for rank in ranks if works[rank] >= _BUSIEST * max(works))
    work = sum(works[rank] for rank in busiest)
    ends = _ends(problem, starts)
    way = max(head[0] + kind.ticks for head, kind in zip(ends[0].heads, problem.kinds, strict=True))
    idle = [0, 0]
    for ticks in sorted({min(bound // 2, way * quarters // 4) for quarters in (6, 7, 9)}):
        for which, end in enumerate(ends):
            solver = solve(_program(cp_model, problem, end, ticks, busiest))
            if solver is None:
                return
            idle[which] = max(idle[which], ticks * len(busiest) - round(solver.best_objective_bound))
            yield -(-(work + sum(idle)) // len(busiest))


def _ends(problem: OrderProblem, starts: OpTimes) -> tuple[_End, _End]:
    """Return the first end and the last one."""
    end = objective_ticks(problem, starts)
    parts = tuple(tuple(held_parts(problem, rank)) for rank in range(problem.num_ranks))
    backwards = [
        [end - start - kind.ticks for start in reversed(row)] for row, kind in zip(starts, problem.kinds, strict=True)
    ]
    tails = [row[::-1] for row in least_tails(problem)]
    turned = tuple(tuple(_turned(part) for part in of_rank) for of_rank in parts)
    first = _End(earliest_starts(problem), starts, parts, is_last=False)
    return first, _End(tails, backwards, turned, is_last=True)


def _turned(part: HeldPart) -> HeldPart:
    (since, from_end), (until, to_end) = part.since, part.until
    return part._replace(since=(until, not to_end), until=(since, not from_end))


def _program(cp_model: Any, problem: OrderProblem, end: _End, ticks: int, busiest: frozenset[int]) -> Any:
    """Return the program whose optimum is the most work of the `busiest` ranks in the first ticks of an end."""
    model, size, works = cp_model.CpModel(), problem.num_microbatches, list[Any]()
    begun: _Begun = {}
    for index, kind in enumerate(problem.kinds):
        for microbatch in range(size):
            there = size - 1 - microbatch if end.is_last else microbatch
            head = end.heads[index][microbatch]
            if there < problem.first(index) or head >= ticks:
                continue
            start, is_begun = model.new_int_var(head, ticks - 1, ""), model.new_bool_var("")
            begun[index, microbatch] = start, is_begun
            hint = end.hint[index][microbatch]
            model.add_hint(is_begun, hint < ticks)
            model.add_hint(start, max(head, min(hint, ticks - 1)))
            if kind.rank in busiest:
                worked = model.new_int_var(0, kind.ticks, "")
                model.add(worked <= kind.ticks * is_begun)
                model.add(worked <= ticks - start)
                works.append(worked)
    _add_arcs(model, problem, end, begun)
    for rank, kinds in enumerate(problem.of_rank):
        intervals = [
            model.new_optional_fixed_size_interval_var(start, problem.kinds[index].ticks, is_begun, "")
            for (index, _), (start, is_begun) in begun.items()
            if index in kinds
        ]
        model.add_no_overlap(intervals)
        if rank in problem.counts_room:
            _limit(model, problem, end, rank, ticks, begun)
    model.maximize(sum(works))
    return model


def _add_arcs(model: Any, problem: OrderProblem, end: _End, begun: _Begun) -> None:
    """Let an op begin only after all ops that it waits for are over."""
    size = problem.num_microbatches
    for arc in problem.arcs:
        for microbatch in range(problem.since(arc), size - arc.distance):
            earlier, later = (arc.before, microbatch), (arc.after, microbatch + arc.distance)
            if end.is_last:
                earlier, later = (arc.after, size - 1 - later[1]), (arc.before, size - 1 - microbatch)
            if later not in begun:
                continue
            start, is_begun = begun[later]
            if earlier in begun:
                length = problem.kinds[earlier[0]].ticks + arc.ticks
                model.add_implication(is_begun, begun[earlier][1])
                model.add(start >= begun[earlier][0] + length).only_enforce_if(is_begun)
            else:
                model.add(is_begun == 0)


def _limit(model: Any, problem: OrderProblem, end: _End, rank: int, ticks: int, begun: _Begun) -> None:
    """Limit a rank's memory in the first ticks; memory that is not freed by then is held to the end."""
    intervals, sizes = list[Any](), list[int]()
    longest = ticks + 2 * max(kind.ticks for kind in problem.kinds)
    for part in end.parts[rank]:
        (since, from_end), (until, to_end) = part.since, part.until
        for first, last in part.pairs(problem.num_microbatches):
            if (since, first) not in begun:
                continue
            start, is_begun = begun[since, first]
            close = model.new_int_var(0, longest, "")
            if (until, last) in begun:
                closing, is_over = begun[until, last]
                model.add(close >= closing + (problem.kinds[until].ticks if to_end else 0)).only_enforce_if(is_over)
                model.add(close >= ticks).only_enforce_if(is_over.negated())
            else:
                model.add(close >= ticks)
            length = model.new_int_var(0, longest, "")
            opened = start + (problem.kinds[since].ticks if from_end else 0)
            intervals.append(model.new_optional_interval_var(opened, length, close, is_begun, ""))
            sizes.append(part.size)
    model.add_cumulative(intervals, sizes, problem.room.limits[rank])
