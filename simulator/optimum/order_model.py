"""The integer program of an order problem, for CP-SAT of OR-tools: the least time, and a bound that is proven.

    an interval for each op, of fixed length                 no two of a rank at once
    a difference for each arc                                start after >= end before + what lies between
    a Boolean for each R that may be left out                whether it is there, with all that depends on that
    where arcs do not say all of a rank's limit: an interval for each micro-batch of a stage, from the start of F to the
    end of what lets go of it, and no more of them at once than there is room for
    the end of all                                           at least what is known already, and to be the least
    of a batch that is repeated, the period: no rank takes longer from its first op to its last

It starts from an order that is known (a hint), and only looks for better ones. What it leaves open, a bound by both
ends of the batch may close (`end_bound`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

from pipesched.simulator import SimulationError
from pipesched.simulator.optimum.end_bound import bound_by_ends
from pipesched.simulator.optimum.held_parts import held_parts
from pipesched.simulator.optimum.op_times import OpTimes, earliest_starts, least_tails, objective_ticks, tightened_times
from pipesched.simulator.optimum.order_bound import least_ticks
from pipesched.simulator.optimum.order_problem import OrderProblem

_MOST_TICKS = 1_000_000
"""Ticks of a batch in a search, where times are rounded to ticks anyway."""
_WHOLE_SHARE = 0.5
"""Share of the time that is for the whole batch; the rest is for its ends."""
_TICK_S = 0.2
"""How often progress is told."""
_MOST_OPS = 20_000
"""Ops of a search: with more the model alone takes minutes."""

OnOrder: TypeAlias = Callable[[float, int, int], None]
"""Told (seconds since the start, ticks of the best order, ticks that none is shorter than)."""
OnBound: TypeAlias = Callable[[float], None]
"""Told a better bound."""


@dataclass(frozen=True, slots=True)
class OrderProof:
    """The best order that is known, and how much shorter another could be.

    Attributes:
        starts: Starts of all ops [ticks].
        ticks: The end of the last one.
        bound: Ticks that no order is shorter than.
        resolution: Ticks that times were rounded down to for the search.
        is_stopped: Whether the search was interrupted.
    """

    starts: OpTimes
    ticks: int
    bound: int
    resolution: int = 1
    is_stopped: bool = False


def prove_order(
    problem: OrderProblem,
    starts: OpTimes,
    bound: int,
    *,
    seconds: float,
    num_workers: int | None = None,
    progress: OnOrder = lambda seconds, ticks, bound: None,  # noqa: ARG005
    bounds_ends: bool = True,
) -> OrderProof:
    """Look for a shorter order than one that is known, and for a proof that there is none.

    A KeyboardInterrupt ends the search with what there is.

    Args:
        problem: What is to be ordered.
        starts: Starts of an order that keeps to the limits [ticks].
        bound: Ticks that no order is shorter than, as `least_ticks` knows.
        seconds: How long to look at most [s]; 0: not at all.
        num_workers: Threads; None: one for each core.
        progress: Told how far it is, now and then.
        bounds_ends: Whether both ends of the batch are looked at, too, where that may give a better bound.

    Raises:
        ModuleNotFoundError: OR-tools is not installed, and there is something to look for.
        SimulationError: There are too many ops to look for it.
    """
    known = objective_ticks(problem, starts)
    if known <= bound or seconds <= 0:
        return OrderProof(starts, known, min(bound, known))
    begun_s, num_ops = time.monotonic(), problem.num_microbatches * len(problem.kinds)
    if num_ops > _MOST_OPS:
        raise SimulationError(
            f"orders: got {num_ops} ops to search, expected at most {_MOST_OPS}; try "
            f"{max(1, _MOST_OPS // len(problem.kinds))} micro-batches, or 0 seconds (simple bounds)"
        )
    factor = 1 if problem.is_exact else max(1, known // _MOST_TICKS)
    solving = _Solving(
        _loaded(), seconds, num_workers or os.cpu_count() or 1, progress, factor, [known, bound], begun_s
    )
    has_ends = bounds_ends and not problem.is_repeated and not problem.optional
    starts, bound, is_optimal = _solve_whole(solving, problem, starts, seconds * (_WHOLE_SHARE if has_ends else 1.0))
    ticks = objective_ticks(problem, starts)
    if not is_optimal and has_ends and not solving.is_stopped:
        coarse = [[start // factor for start in row] for row in starts]
        for least in bound_by_ends(
            solving.cp_model, problem.coarser(factor), coarse, bound // factor, solving.solve_end
        ):
            solving.learn(ticks // factor, least)
            bound = max(bound, least * factor)
            if bound >= ticks:
                break
    return OrderProof(starts, ticks, min(bound, ticks), factor, solving.is_stopped)


@dataclass
class _Solving:
    """Solvers, one after the other, in the time that there is.

    Attributes:
        cp_model: OR-tools' module.
        seconds: How long all of them may take [s].
        num_workers: Threads.
        progress: Told how far it is, now and then.
        factor: Ticks of one tick of the programs.
        best: Ticks of the best order that is known, and ticks that none is shorter than.
        begun_s: When the time began [s].
        is_stopped: Whether the search was interrupted.
    """

    cp_model: Any
    seconds: float
    num_workers: int
    progress: OnOrder
    factor: int
    best: list[int]
    begun_s: float
    is_stopped: bool = False

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.begun_s

    def learn(self, ticks: int, least: int) -> None:
        """Note an order, or a bound, in ticks of the programs."""
        self.best[:] = min(self.best[0], ticks * self.factor), max(self.best[1], least * self.factor)

    def solve(self, program: Any, seconds: float, callback: Any = None, tell: OnBound | None = None) -> tuple[Any, Any]:
        """Return the solver of a program, and how it ended."""
        solver = self.cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = self.num_workers
        solver.parameters.catch_sigint_signal = False
        solver.parameters.cp_model_probing_level = 0  # it takes seconds, and the order is known to be possible
        if tell is not None:
            solver.best_bound_callback = tell
        return solver, self._run(partial(solver.solve, program, callback), solver.stop_search)

    def _run(self, solve: Callable[[], Any], stop: Callable[[], None]) -> Any:
        """Return what `solve` does, in a thread of its own: this one tells how far it is, and can be interrupted."""
        with ThreadPoolExecutor(1) as pool:
            solving = pool.submit(solve)
            try:
                while not wait([solving], timeout=_TICK_S).done:
                    self.progress(self.passed_s, *self.best)
            except KeyboardInterrupt:
                self.is_stopped = True
                stop()
            except BaseException:
                stop()
                raise
            return solving.result()

    def solve_end(self, program: Any) -> Any:
        """Return the solver of an end of the batch, after half of the time that is left; None if that was too short."""
        left_s = self.seconds - self.passed_s
        if left_s <= 0 or self.is_stopped:
            return None
        solver, status = self.solve(program, left_s / 2)
        return solver if status in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE) else None


def _solve_whole(
    solving: _Solving, problem: OrderProblem, starts: OpTimes, seconds: float
) -> tuple[OpTimes, int, bool]:
    """Return the best order of the whole batch that is found in its time, the best bound, and whether they are one."""
    cp_model, factor, (known, bound) = solving.cp_model, solving.factor, solving.best
    coarse = [[start // factor for start in row] for row in starts]
    model, variables, is_there = _model(cp_model, problem.coarser(factor), coarse)
    solver, status = solving.solve(
        model,
        max(0.0, seconds - solving.passed_s),
        _on_solution(cp_model, lambda ticks: solving.learn(ticks, 0)),
        lambda least: solving.learn(known, round(least)),
    )
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        left_out = {kind for kind, variable in is_there.items() if not solver.value(variable)}
        order = [[] if kind in left_out else [*map(solver.value, row)] for kind, row in enumerate(variables)]
        starts = min(starts, tightened_times(problem, order), key=lambda times: objective_ticks(problem, times))
    proven = round(solver.best_objective_bound) * factor
    if problem.is_repeated and not problem.is_exact:
        proven -= factor  # begins and ends are rounded down, so that their distance may be rounded up
    return starts, max(bound, proven), status == cp_model.OPTIMAL


def _loaded() -> Any:
    """Return CP-SAT, loaded by another thread, as an interrupt in the midst of it breaks its machine code.

    Raises:
        ModuleNotFoundError: OR-tools is not installed.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(import_module, "ortools.sat.python.cp_model").result()


def _on_solution(cp_model: Any, tell: Callable[[int], None]) -> Any:
    class Callback(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            tell(round(self.objective_value))

    return Callback()


def _model(cp_model: Any, problem: OrderProblem, hint: OpTimes) -> tuple[Any, list[list[Any]], dict[int, Any]]:
    """Return the program, the variables of the starts, and those of the kinds that may be left out."""
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
    """Return what is to be the least: when all ranks have ended, or the longest time from a rank's begin to its end."""
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
