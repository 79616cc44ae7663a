"""Orders that are known before any search: the orders of the catalogue and of the planner that fit a problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import NamedTuple

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.builders import CATALOGUE, Entry, ParameterValue, build
from pipesched.schedules.ops import Compute, Phase
from pipesched.schedules.transforms import recompute
from pipesched.simulator import SimulationError
from pipesched.simulator.optimum.list_planner import planned_times
from pipesched.simulator.optimum.op_times import (
    OpTimes,
    listed_times,
    objective_ticks,
    schedule_of_times,
    tightened_times,
)
from pipesched.simulator.optimum.order_problem import OrderProblem
from pipesched.simulator.optimum.order_proof import Excess
from pipesched.simulator.optimum.orderable_lists import is_split, orderable, recomputing_stages, split_backwards

PLANNER = "list planner"
"""The name of the order that `planned_times` makes."""
_PLANS = 3
"""How often it makes one that holds less."""


class KnownOrder(NamedTuple):
    """An order that keeps to the limits.

    Attributes:
        schedule: Its lists.
        starts: When each op starts [ticks].
        ticks: The end of the last one.
    """

    schedule: Schedule
    starts: OpTimes
    ticks: int


def known_orders(
    problem: OrderProblem,
    schedule: Schedule,
    costs: StageCosts,
    excess: Excess | None = None,
    *,
    is_quick: bool = False,
) -> list[KnownOrder]:
    """Return the known orders of the ops of a schedule that keep to the limits, the shortest first.

    Args:
        problem: The schedule's order problem.
        schedule: Lists from `orderable`; their order is included if it keeps to the limits.
        costs: The costs of its stages.
        excess: Computes the bytes by which lists exceed the limits, in memory that the room does not count; None if
            there is no such memory.
        is_quick: Same as in `planned_times`.
    """
    lists = (known for known in (schedule, *_of_catalogue(problem, schedule, costs)) if problem.room.holds(known))
    orders = [_known(problem, known) for known in lists if excess is None or not any(excess(known))]
    orders += _planned(problem, schedule, excess, is_quick=is_quick)
    return sorted(orders, key=lambda order: order.ticks)


def _planned(
    problem: OrderProblem, schedule: Schedule, excess: Excess | None, *, is_quick: bool
) -> Iterator[KnownOrder]:
    """Yield the planner's order, if it finds one that keeps to the limits.

    The planner lets an R wait for the gradient of its backward, so an order may exceed a limit after all. It is then
    planned again with less room.
    """
    name = f"{PLANNER}+R" if recomputing_stages(schedule) else PLANNER
    for _ in range(_PLANS):
        times = planned_times(problem, is_quick=is_quick)
        if times is None:
            return
        starts = tightened_times(problem, times)
        lists = schedule_of_times(problem, schedule, starts, name)
        above = () if excess is None else excess(lists)
        if not any(above):
            yield KnownOrder(lists, starts, objective_ticks(problem, starts))
            return
        problem = problem.less(above)


def orders_of_choices(
    problem: OrderProblem,
    choices: Iterable[tuple[OrderProblem, Schedule]],
    costs: StageCosts,
    excess: Excess | None = None,
) -> list[KnownOrder]:
    """Return known orders of a problem in which some R may be left out; for each name, the shortest order.

    A quick search makes the orders.

    Args:
        problem: The problem with all optional R.
        choices: Problems without some of the optional R, each with its lists.
        costs: The costs of the stages.
        excess: Same as in `known_orders`.
    """
    orders = dict[str, KnownOrder]()
    for choice, schedule in choices:
        for order in known_orders(choice, schedule, costs, excess, is_quick=True):
            index_of = choice.index_of
            starts = [order.starts[index_of[kind.op]] if kind.op in index_of else [] for kind in problem.kinds]
            best = orders.get(order.schedule.name)
            if best is None or order.ticks < best.ticks:
                orders[order.schedule.name] = order._replace(starts=starts)
    return sorted(orders.values(), key=lambda order: order.ticks)


def _known(problem: OrderProblem, schedule: Schedule) -> KnownOrder:
    starts = listed_times(problem, schedule)
    return KnownOrder(schedule, starts, objective_ticks(problem, starts))


def _of_catalogue(problem: OrderProblem, schedule: Schedule, costs: StageCosts) -> Iterator[Schedule]:
    """Yield the schedules of the catalogue with the stage placement of `schedule` and the same split of backwards."""
    rebuilt = recomputing_stages(schedule)
    for entry in CATALOGUE.values():
        if entry.name == schedule.origin or entry.traits.is_asynchronous or entry.traits.averages or entry.replicas > 1:
            continue
        chunks = schedule.num_stages // schedule.num_ranks
        try:
            built = build(
                entry.name,
                schedule.num_ranks,
                schedule.num_microbatches,
                chunks if entry.traits.takes_chunks else None,
                **_settings(entry, problem, chunks),
            )
            if built.homes != schedule.homes:
                continue
            lists = orderable(built, costs)
        except (ScheduleError, SimulationError):
            continue
        if is_split(schedule) and not is_split(lists):
            lists = split_backwards(lists)
        if is_split(schedule) == is_split(lists):
            yield recompute(lists, rebuilt) if rebuilt else lists


def _settings(entry: Entry, problem: OrderProblem, chunks: int) -> dict[str, ParameterValue]:
    """Return the parameters by which an entry comes nearest to the problem."""
    if entry.takes("waves"):
        return {"waves": chunks // 2}
    if chunks > 1 or not entry.takes("limit"):
        return {}
    room = problem.room
    phases = {"f": Phase.FORWARD, "i": Phase.BACKWARD_INPUT, "w": Phase.BACKWARD_WEIGHT}
    known: dict[str, ParameterValue] = {name: round(_mean_ticks(problem, phase), 3) for name, phase in phases.items()}
    stages = [(limit, stage) for limit, stage in zip(room.limits, room.stages, strict=True) if stage.saved]
    limits = [(limit - stage.working) / stage.saved for limit, stage in stages]
    kept = min((stage.kept / stage.saved for _, stage in stages), default=1.0)
    return known | {"limit": min(limits), "kept": min(1.0, kept)} if limits else known


def _mean_ticks(problem: OrderProblem, phase: Phase) -> float:
    ticks = [kind.ticks for kind in problem.kinds if isinstance(kind.op, Compute) and kind.op.phase is phase]
    return fmean(ticks) if ticks else 0.0
