"""The steady-state time per micro-batch of any schedule.

Pipelines that slow each other on the same devices drift apart (`predict_drifting`). A run without a flush is made
longer (`UnflushedRuns`). A batch is repeated (`RepeatedRuns`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipesched.schedules import Schedule, ScheduleError, Timeline
from pipesched.schedules.transforms import runs_without_flush
from pipesched.simulator import Estimate, Inexact, Scenario, SimulationError, SteadyPace
from pipesched.simulator.engine import equal_pipelines
from pipesched.simulator.fast.equal_pipelines import is_slowed, predict_drifting
from pipesched.simulator.fast.steady_state import RepeatedRuns
from pipesched.simulator.fast.unflushed_runs import UnflushedRuns


def steady_pace(
    scenario: Scenario,
    timeline: Timeline | None = None,
    longer: Callable[[int], Schedule] | None = None,
    runs: RepeatedRuns | UnflushedRuns | None = None,
) -> SteadyPace | Inexact:
    """Return the steady-state time per micro-batch of a schedule, or the reason why it is unknown.

    Args:
        scenario: Scenario of a batch, or of a run without a flush.
        timeline: Timeline of the scenario, simulated without jitter, or None to simulate it here.
        longer: Makes a run without a flush a number of times as long, or None to continue its lists.
        runs: Earlier runs of the schedule with this `longer`, or None to make them here on demand.
    """
    try:
        answer = _answer(scenario, timeline, longer, runs)
    except (ScheduleError, SimulationError) as error:  # lists that cannot continue
        return Inexact(str(error))
    return answer if isinstance(answer, Inexact) else answer.pace(_num_microbatches(scenario))


def _answer(
    scenario: Scenario,
    timeline: Timeline | None,
    longer: Callable[[int], Schedule] | None,
    runs: RepeatedRuns | UnflushedRuns | None,
) -> Estimate | Inexact:
    several = drifting_scenario(scenario)
    if several is not None:
        return several if isinstance(several, Inexact) else predict_drifting(several)
    return (runs or longer_runs(scenario.schedule, longer)).predict(scenario, timeline)


def longer_runs(schedule: Schedule, longer: Callable[[int], Schedule] | None = None) -> RepeatedRuns | UnflushedRuns:
    """Return the longer runs that show the pace of a schedule under any costs: with a flush, or without.

    Args:
        schedule: Lists of a batch, or of a run without a flush.
        longer: Makes a run without a flush the given number of times as long; None: its lists are continued.

    Raises:
        ScheduleError: The lists of a run without a flush do not repeat.
    """
    if longer is None and not runs_without_flush(schedule):
        return RepeatedRuns(schedule)
    return UnflushedRuns(schedule, longer)


def drifting_scenario(scenario: Scenario) -> Scenario | Inexact | None:
    """Return the scenario of pipelines that slow each other by the lists of one; None where none slows another.

    Returns:
        The scenario, or why its pipelines have no lists in common.
    """
    number = scenario.num_pipelines * scenario.schedule.pipelines
    if number == 1 or not is_slowed(scenario.costs, number):
        return None
    if scenario.num_pipelines > 1:
        return scenario
    single = equal_pipelines(scenario.schedule)
    if single is None:
        return Inexact(
            f"{scenario.schedule.name}: got {number} unequal pipelines on the same devices, expected equal ones, whose "
            "drift is known; try simulate"
        )
    return replace(scenario, schedule=single, num_pipelines=number)


def _num_microbatches(scenario: Scenario) -> int:
    return scenario.num_pipelines * scenario.schedule.num_microbatches
