"""Optimize: find the fastest order of a schedule's ops under a memory limit, and prove a lower bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipesched.profiles.costs import Profile, StageCosts
from pipesched.questions import OptimizeSettings
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import can_sum_before_steps
from pipesched.simulator import SimulationError
from pipesched.simulator.optimum import most_in_flight, require_orderable_length
from pipesched.workflows import ArgumentError, asks, require_rate
from pipesched.workflows.arguments import ListsArgument, read_lists_argument
from pipesched.workflows.optimizing.optimum_result import (
    BEST_KNOWN,
    OPTIMUM,
    WITHOUT_TIED_SUM,
    Optimum,
    OrderedSchedule,
)
from pipesched.workflows.optimizing.unflushed_optimum import optimize_unflushed
from pipesched.workflows.simulating import (
    OnSearch,
    Prediction,
    Setup,
    SetupArgument,
    order_search,
    predict_source,
    read_setup_argument,
    require_unused,
    simulate,
)


@dataclass(frozen=True, slots=True)
class OptimizeQuestion(OptimizeSettings):
    """The question of `optimize`; its fields are the arguments of that function."""

    schedule: ListsArgument
    setup: SetupArgument
    progress: OnSearch = field(default=lambda share, best_s, bound_s: None, kw_only=True)  # noqa: ARG005


@asks(OptimizeQuestion)
def optimize(question: OptimizeQuestion) -> Optimum:
    """Find the fastest order of a schedule's ops, and prove a lower bound on the time of any order.

    The ops and their ranks come from `schedule`: one stage per rank (``1f1b``, ``zb_h1``), chunks (``interleaved``,
    ``interleaved_zb``), a V (``zbv``) or waves (``hanayo``). The search starts from the best known order within the
    limit, which is from the catalogue or from a planner. CP-SAT of OR-tools (``pip install "pipesched[optimize]"``)
    searches for a better order unless a simple bound proves that none exists.

    Without a flush (``pipedream``, ``pipedream_2bw``, ``vanilla_1f1b``, ``stale_weights``, ``spectrain``, ``xpipe``,
    ``pipeoptim``) the objective is the period of a micro-batch. The result gives the micro-batches in flight on each
    rank; every rank keeps its order, one F and one B in turn, and no search is needed.

    Args:
        schedule: Lists as `simulate` takes them: one pipeline and one batch, or run, each stage on one rank.
        setup: Costs, machines and other conditions, a `Setup`; or the costs alone. If costs have bytes and devices have
            memory, the memory of the devices is the limit. The proof assumes messages that wait for no other message,
            which never raises the bound.
        progress: Receives the finished share of the search, the best time and the bound [s].

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ModuleNotFoundError: OR-tools is not installed, and the search needs it.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: A bad file.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be reordered, or a rank has no room for one micro-batch.
    """
    source, setup = read_lists_argument(question.schedule), read_setup_argument(question.setup)
    _require_optimizable(question, setup)
    require_orderable_length(source.schedule)
    setup = setup if source.plan else setup.cut(source)  # the orders share a cut, or the bound would be of another one
    is_tied = setup.costs_of(source).tied_bytes and can_sum_before_steps(source.schedule)
    notes = (WITHOUT_TIED_SUM,) if is_tied else ()
    setup = _without_tied_sum(setup) if is_tied else setup
    if source.schedule.traits.is_asynchronous:
        _require_unset(question, source.schedule.name)
        return optimize_unflushed(source, setup, question.in_flight)
    given = predict_source(source, setup)
    search = order_search(given, question)

    def judged(schedule: Schedule) -> OrderedSchedule:
        predicted = predict_source(replace(source, schedule=schedule, longer=None), setup)
        period_s = _period_s(predicted) if question.is_repeated else None
        return OrderedSchedule(schedule, predicted.makespan_s, period_s, most_in_flight(schedule, given.costs))

    known = sorted((judged(order.schedule) for order in search.orders), key=lambda order: order.time_s)
    over_limit = None if search.fits else judged(search.lists)
    # last, so that an interrupt is answered at once
    proof = search.prove(question, question.progress)
    best = known[0]
    if proof.starts is not search.orders[0].starts:
        best = min(best, judged(search.lists_of(proof.starts, OPTIMUM)), key=lambda order: order.time_s)
    least = search.least_time(best.time_s, proof)
    lists = replace(best.schedule, name=BEST_KNOWN if least.gap else OPTIMUM, origin=None)
    simulation = simulate(replace(source, schedule=lists, longer=None), setup)
    return Optimum(simulation, least, tuple(known), source.schedule.name, over_limit, notes)


def _require_optimizable(question: OptimizeQuestion, setup: Setup) -> None:
    """Refuse an invalid limit, and conditions under which no order is the best.

    Raises:
        ArgumentError: The limit is invalid, or such a condition is given.
    """
    if question.in_flight is not None:
        require_rate("in_flight", question.in_flight)
    require_unused(setup, "optimize", "tied_bytes")
    if setup.jitter:
        raise ArgumentError(
            f"jitter: got {setup.jitter:g}, expected none: the search for the best order needs constant costs; leave "
            "it out"
        )


def _require_unset(question: OptimizeQuestion, schedule: str) -> None:
    """Refuse settings for a batch with a flush if the run has no flush.

    Raises:
        ArgumentError: Such a setting is given.
    """
    for name in ("is_split", "may_recompute", "is_repeated"):
        if getattr(question, name):
            raise ArgumentError(
                f"{name}: got this setting with {schedule}, which has no flush, expected a schedule with a flush; "
                "leave it out"
            )


def _without_tied_sum(setup: Setup) -> Setup:
    """Return a setup whose costs have no sum of tied gradients."""
    costs = setup.loaded_costs
    assert isinstance(costs, Profile | StageCosts), "others have no tied weights"
    without = replace(costs, tied_bytes=0)
    return replace(setup, costs=replace(without, ties=()) if isinstance(without, Profile) else without)


def _period_s(predicted: Prediction) -> float:
    if predicted.steady_s_per_microbatch is None:
        raise SimulationError(
            f"{predicted.schedule.name}: got a batch without a steady state when repeated, expected one with a steady "
            "state; minimize the makespan instead"
        )
    return predicted.steady_s_per_microbatch * predicted.schedule.num_microbatches
