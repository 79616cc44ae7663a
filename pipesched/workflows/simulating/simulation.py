"""Simulate a schedule: time, bubbles, idle time by cause, and memory of the devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipesched.profiles.costs import Variation
from pipesched.profiles.processes import num_cores
from pipesched.questions import SimulateSettings
from pipesched.schedules.lowering import lower
from pipesched.simulator.analysis import metrics
from pipesched.simulator.fast import distribution, makespans
from pipesched.simulator.fidelity import makespan_range
from pipesched.workflows import ArgumentError, asks, require_at_least, require_settings
from pipesched.workflows.arguments import ListsArgument, read_lists_argument
from pipesched.workflows.simulating.prediction import Prediction, predict_source
from pipesched.workflows.simulating.setup import Setup, SetupArgument, read_setup_argument
from pipesched.workflows.simulating.simulation_result import Simulation

if TYPE_CHECKING:
    from pipesched.workflows.simulating.least_time import LeastTime

_LONG = 2_000_000
"""Ops that take about half a minute."""


@dataclass(frozen=True, slots=True)
class SimulateQuestion(SimulateSettings):
    """The question of `simulate`; its fields are the arguments of that function."""

    schedule: ListsArgument
    setup: SetupArgument
    progress: Callable[[float], None] = field(default=lambda fraction: None, kw_only=True)  # noqa: ARG005

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require_settings(self)


@asks(SimulateQuestion)
def simulate(question: SimulateQuestion) -> Simulation:
    """Predict time, bubbles, idle time by cause and memory of a schedule.

    Args:
        schedule: A Schedule, as `build` makes it, a Plan, or a file of either.
        setup: Costs, machines and other conditions, a `Setup`; or the costs alone.
        progress: Receives the finished share of several runs.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ModuleNotFoundError: OR-tools is not installed, and the search for a bound needs it.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: A bad file.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be simulated.
    """
    source, setup = read_lists_argument(question.schedule), read_setup_argument(question.setup)
    num_runs = require_runs(question.num_runs, setup.jitter)
    variation = _variation(setup) if question.spread else None
    if question.bound_seconds is not None and setup.jitter:
        raise ArgumentError("bound_seconds: got `jitter` too, expected one of them; leave one out")
    prediction = predict_source(source, setup)
    several = None if num_runs == 1 else distribution(makespans_of_runs(prediction, num_runs, question.progress))
    return Simulation(
        source,
        setup,
        prediction.costs,
        prediction.cluster,
        prediction.bare_timeline,
        bare_metrics=metrics(prediction.bare_timeline),
        distribution=several,
        spread=None
        if variation is None
        else makespan_range(
            prediction.schedule,
            prediction.costs,
            prediction.cluster,
            setup.network,
            variation,
            question.spread,
            setup.seed,
        ),
        least=None if question.bound_seconds is None else _least_time(prediction, question.bound_seconds),
    )


def _least_time(prediction: Prediction, seconds: float) -> LeastTime:
    """Return the bound for the ops in other orders, or a simple bound if the schedule cannot be reordered."""
    from pipesched.simulator.optimum import NotOrderableError, least_seconds_of_lists
    from pipesched.workflows.simulating.least_time import LeastTime, order_search

    asked = prediction.schedule, prediction.costs, prediction.cluster
    try:
        search = order_search(*asked, has_device_limits=False)
    except NotOrderableError:
        return LeastTime(least_seconds_of_lists(*asked), math.inf, None, prediction.makespan_s)
    return search.least_time(prediction.makespan_s, search.prove(seconds) if seconds else None)


def _variation(setup: Setup) -> Variation:
    """Return the variation of the seconds of the costs.

    Raises:
        ArgumentError: The costs have no variation, or jitter is set too.
    """
    if setup.jitter:
        raise ArgumentError("spread: got `jitter` too, expected one of them; leave one out")
    costs = setup.loaded_costs
    if not costs.is_measured:
        raise ArgumentError(
            "spread: got costs of neither profile nor runs, expected one of them, which says how seconds vary"
        )
    if costs.variation is None:
        what, advice = "runs", "give two runs or more of one schedule"
        if costs.model_name is not None:
            what, advice = f"a profile of {costs.model_name}", "profile the model again, with 2 `repeats` or more"
        raise ArgumentError(f"spread: got {what} without how seconds vary, expected costs that say it; {advice}")
    return costs.variation


def require_runs(num_runs: int, jitter: float) -> int:
    """Return the number of runs; several need jitter.

    Raises:
        ArgumentError: The number is below 1, or above 1 without jitter.
    """
    num_runs = require_at_least("num_runs", num_runs, 1)
    if num_runs > 1 and not jitter:
        raise ArgumentError(
            f"num_runs: got {num_runs} without `jitter`, expected both: all would be the same; try `jitter=0.1`"
        )
    return num_runs


def makespans_of_runs(
    prediction: Prediction,
    num_runs: int,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    *,
    is_shared: bool = True,
) -> list[float]:
    """Return the makespans of runs with jitter [s].

    Args:
        prediction: The run with the first seed; the others have the seeds that follow.
        num_runs: Number of runs.
        progress: Receives the finished share of the runs.
        is_shared: Whether several processes share long work.
    """
    setup, lowered = prediction.setup, lower(prediction.schedule)
    is_long = num_runs * sum(map(len, lowered.ops)) > _LONG
    seconds = []
    for makespan_s in makespans(
        lowered,
        prediction.costs,
        prediction.cluster,
        network=setup.network,
        jitter=setup.jitter,
        seeds=range(setup.seed, setup.seed + num_runs),
        num_processes=num_cores() if is_long and is_shared else 1,
        engine=setup.engine,
    ):
        seconds.append(makespan_s)
        progress(len(seconds) / num_runs)
    return seconds
