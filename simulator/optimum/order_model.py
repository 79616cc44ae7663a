"""The integer program of an order problem, for CP-SAT of OR-tools: the least time, and a bound that is proven.

    an interval for each op, of fixed length                 no two of a rank at once
    a difference for each arc                                start after >= end before + ticks of the arc
    a Boolean for each R that may be left out                whether it is there, with all that depends on that
    where arcs do not cover a rank's limit: an interval for each micro-batch of a stage, from the start of F to the
    end of the op that frees it; their sum never exceeds the room
    the end of all                                           at least the known bound, and to be minimised
    of a batch that is repeated, the period: no rank takes longer from its first op to its last

It starts from a known order (a hint), and only searches for better ones. A bound by both ends of the batch may close
the gap that it leaves (`end_bound`). A process of its own serves the requests.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from pipesched.simulator.optimum.end_bound import bound_by_ends
from pipesched.simulator.optimum.held_parts import held_parts
from pipesched.simulator.optimum.op_times import OpTimes, earliest_starts, least_tails, objective_ticks, tightened_times
from pipesched.simulator.optimum.order_bound import least_ticks
from pipesched.simulator.optimum.order_problem import OrderProblem

_WHOLE_SHARE = 0.5
"""Share of the time that is for the whole batch; the rest is for its ends."""

OnNews: TypeAlias = Callable[[int, int, OpTimes | None], None]
"""Called with (ticks of the best order, lower bound in ticks, starts of the best order if they are new)."""


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """A search request; plain data, so that it can be sent to another process.

    Attributes:
        problem: The problem.
        starts: Starts of an order that keeps to the limits [ticks].
        bound: Lower bound on the ticks of any order.
        seconds: Time limit [s].
        num_workers: Threads.
        resolution: Ticks that times are rounded down to.
        bounds_ends: Whether to bound both ends of the batch, too, if that may give a better bound.
    """

    problem: OrderProblem
    starts: OpTimes
    bound: int
    seconds: float
    num_workers: int
    resolution: int = 1
    bounds_ends: bool = True


def search_order(request: OrderRequest, tell: OnNews) -> tuple[OpTimes, int]:
    """Return starts of the best order and the best bound [ticks]; `tell` is called on each improvement.

    Raises:
        ModuleNotFoundError: OR-tools is not installed.
    """
    problem, factor = request.problem, request.resolution
    solving = _Solving(import_module("ortools.sat.python.cp_model"), request, tell)
    has_ends = request.bounds_ends and not problem.is_repeated and not problem.optional
    starts, is_optimal = _solve_whole(solving, request.seconds * (_WHOLE_SHARE if has_ends else 1.0))
    if not is_optimal and has_ends:
        coarse = [[start // factor for start in row] for row in starts]
        ends = bound_by_ends(
            solving.cp_model, problem.coarser(factor), coarse, request.bound // factor, solving.solve_end
        )
        for least in ends:
            solving.learn_bound(least * factor)
            if solving.bound >= solving.ticks:
                break
    return starts, solving.bound


class _Solving:
    """Solvers, one after the other, within the time limit.

    Attributes:
        cp_model: OR-tools' module.
        request: The request, with its time limit.
        ticks: Ticks of the best order that is known.
        bound: Lower bound of the ticks of all orders.
    """

    def __init__(self, cp_model: Any, request: OrderRequest, tell: OnNews) -> None:
        self.cp_model, self.request, self._tell = cp_model, request, tell
        self.ticks, self.bound = objective_ticks(request.problem, request.starts), request.bound
        self._begun_s = time.monotonic()
        tell(self.ticks, self.bound, None)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.request.seconds - (time.monotonic() - self._begun_s))

    def learn_bound(self, bound: int) -> None:
        """Note a lower bound [ticks] if it is higher than the one so far, and report it."""
        if bound > self.bound:
            self.bound = bound
            self._tell(self.ticks, bound, None)

    def learn_order(self, starts: OpTimes) -> None:
        """Note an order if it is better than the best one so far, and report it."""
        ticks = objective_ticks(self.request.problem, starts)
        if ticks < self.ticks:
            self.ticks = ticks
            self._tell(ticks, self.bound, starts)

    def solve(self, program: Any, seconds: float, callback: Any = None, tell: Any = None) -> tuple[Any, Any]:
        """Return the solver of a program, and how it ended."""
        solver = self.cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = self.request.num_workers
        solver.parameters.catch_sigint_signal = False
        solver.parameters.cp_model_probing_level = 0  # it takes seconds, and the order is known to be possible
        if tell is not None:
            solver.best_bound_callback = tell
        return solver, solver.solve(program, callback)

    def solve_end(self, program: Any) -> Any:
        """Solve a program of the batch's end in half of the time left; return the solver, or None if unsolved."""
        if not self.left_s:
            return None
        solver, status = self.solve(program, self.left_s / 2)
        return solver if status in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE) else None


def _solve_whole(solving: _Solving, seconds: float) -> tuple[OpTimes, bool]:
    """Return the best order of the whole batch after tightening, and whether it is proven to be optimal."""
    cp_model, request = solving.cp_model, solving.request
    problem, factor, best = request.problem, request.resolution, [request.starts]
    coarse = [[start // factor for start in row] for row in request.starts]
    model, variables, is_there = _model(cp_model, problem.coarser(factor), coarse)
    # begins and ends are rounded down, so that the distance of two may be rounded up
    rounding = factor if problem.is_repeated and not problem.is_exact else 0

    def learn_order(value_of: Callable[[Any], int]) -> None:
        left_out = {kind for kind, variable in is_there.items() if not value_of(variable)}
        order = [[] if kind in left_out else [*map(value_of, row)] for kind, row in enumerate(variables)]
        tightened = tightened_times(problem, order)
        best[:] = [min(best[0], tightened, key=lambda starts: objective_ticks(problem, starts))]
        solving.learn_order(best[0])

    def learn_bound(least: float) -> None:
        solving.learn_bound(round(least) * factor - rounding)

    spent_s = request.seconds - solving.left_s
    callback = _on_solution(cp_model, learn_order)
    solver, status = solving.solve(model, max(0.0, seconds - spent_s), callback, learn_bound)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        learn_order(solver.value)
    learn_bound(solver.best_objective_bound)
    return best[0], status == cp_model.OPTIMAL


def _on_solution(cp_model: Any, learn: Callable[[Callable[[Any], int]], None]) -> Any:
    class Callback(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            learn(self.value)

    return Callback()


def _model(cp_model: Any, problem: OrderProblem, hint: OpTimes) -> tuple[Any, list[list[Any]], dict[int, Any]]:
    """Return the program, the variables of the starts, and a Boolean for each kind that may be left out."""
    model, horizon = cp_model.CpModel(), objective_ticks(problem, hint)
    if problem.is_repeated:  # no two ranks begin further apart than one takes and the longest message
        horizon = problem.num_ranks * (horizon + max((arc.ticks for arc in problem.arcs), default=0))
    heads, tails = earliest_starts(problem.relaxed), least_tails(problem.relaxed)
    is_there = {optional: model.new_bool_var("") for optional in problem.optional}
    for optional, variable in is_there.items():
        model.add_hint(variable, bool(hint[optional]))
    starts: list[list[Any]] = []
    for index, kind in enumerate(problem.relaxed.kinds):
        first = problem.first(index)
        starts.append([0] * first)
        for microbatch in range(first, problem.num_microbatches):
            latest = horizon - tails[index][microbatch] - kind.ticks
            starts[-1].append(model.new_int_var(heads[index][microbatch], latest, ""))
            if hint[index]:
                model.add_hint(starts[-1][-1], hint[index][microbatch])
    for arc in problem.arcs:
        length = problem.kinds[arc.before].ticks + arc.ticks
        needed = [is_there[end] for end in (arc.before, arc.after) if end in is_there]
        for microbatch in range(problem.since(arc), problem.num_microbatches - arc.distance):
            after, before = starts[arc.after][microbatch + arc.distance], starts[arc.before][microbatch]
            model.add(after >= before + length).only_enforce_if(needed)
    for rank, kinds in enumerate(problem.of_rank):
        works = [
            model.new_optional_fixed_size_interval_var(start, problem.kinds[own].ticks, is_there.get(own, True), "")
            for own in kinds
            for start in starts[own][problem.first(own) :]
        ]
        model.add_no_overlap(works)
        if rank in problem.counts_room:
            _limit(model, problem, rank, starts, hint, is_there, horizon)
    model.minimize(_objective(model, problem, starts, hint, horizon))
    return model, starts, is_there


def _objective(model: Any, problem: OrderProblem, starts: list[list[Any]], hint: OpTimes, horizon: int) -> Any:
    """Return the objective to minimise: the end of all ranks, or the longest time from a rank's begin to its end."""
    known = objective_ticks(problem, hint)
    objective = model.new_int_var(least_ticks(problem), known, "")
    model.add_hint(objective, known)
    for kinds in problem.of_rank:
        begin = 0
        if problem.is_repeated:
            begin = model.new_int_var(0, horizon, "")
            model.add_hint(begin, min(hint[index][problem.first(index)] for index in kinds if hint[index]))
        for index in kinds:
            if index in problem.optional:  # it is between others of its rank
                continue
            model.add(starts[index][problem.first(index)] >= begin)
            model.add(objective >= starts[index][-1] + problem.kinds[index].ticks - begin)
    return objective


def _limit(
    model: Any,
    problem: OrderProblem,
    rank: int,
    starts: list[list[Any]],
    hint: OpTimes,
    is_there: dict[int, Any],
    horizon: int,
) -> None:
    """Let a rank hold no more than it may."""
    intervals, sizes = list[Any](), list[int]()
    for part in held_parts(problem, rank):
        since_ticks, until_ticks = (
            problem.kinds[kind].ticks if is_end else 0 for kind, is_end in (part.since, part.until)
        )
        begin, end = part.since[0], part.until[0]
        is_held: Any = True
        if part.rebuilt in is_there:
            is_held = is_there[part.rebuilt] if part.is_rebuilt else is_there[part.rebuilt].negated()
        for first, last in part.pairs(problem.num_microbatches):
            since, until = starts[begin][first] + since_ticks, starts[end][last] + until_ticks
            length = model.new_int_var(0, horizon, "")
            if hint[begin] and hint[end]:
                hinted = hint[end][last] + until_ticks - hint[begin][first] - since_ticks
                model.add_hint(length, max(0, hinted))
            intervals.append(model.new_optional_interval_var(since, length, until, is_held, ""))
            sizes.append(part.size)
    model.add_cumulative(intervals, sizes, problem.room.limits[rank])


def main() -> None:
    """Serve search requests of `OrderSearcher` from stdin until it closes, and report progress on stdout."""
    from pydantic import TypeAdapter

    from pipesched.profiles.processes import end_with

    end_with(int(sys.argv[1]))
    requests, telling = TypeAdapter(OrderRequest), threading.Lock()
    import_module("ortools.sat.python.cp_model")  # before the time of the first search begins

    def tell(ticks: int, bound: int, starts: OpTimes | None, *, is_over: bool = False) -> None:
        with telling:  # solvers call from threads of their own
            sys.stdout.write(json.dumps([ticks, bound, starts, is_over]) + "\n")
            sys.stdout.flush()

    for line in sys.stdin.buffer:
        request = requests.validate_json(line)
        starts, bound = search_order(request, tell)
        tell(objective_ticks(request.problem, starts), bound, starts, is_over=True)


if __name__ == "__main__":
    main()
