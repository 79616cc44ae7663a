"""The steady-state time per micro-batch of any schedule.

Pipelines that slow each other on the same devices drift apart (`predict_drifting`). A run without a flush is made
longer (`predict_unflushed`). A batch is repeated (`predict_repeated`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipesched.schedules import Schedule, ScheduleError, Timeline
from pipesched.schedules.transforms import runs_without_flush
from pipesched.simulator import Estimate, Inexact, Scenario, SimulationError, SteadyPace
from pipesched.simulator.engine import equal_pipelines
from pipesched.simulator.fast.equal_pipelines import is_slowed, predict_drifting
from pipesched.simulator.fast.steady_state import predict_repeated
from pipesched.simulator.fast.unflushed_runs import UnflushedRuns


def steady_pace(
    scenario: Scenario,
    timeline: Timeline | None = None,
    longer: Callable[[int], Schedule] | None = None,
    runs: UnflushedRuns | None = None,
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
    runs: UnflushedRuns | None,
) -> Estimate | Inexact:
    several = drifting_scenario(scenario)
    if several is not None:
        return several if isinstance(several, Inexact) else predict_drifting(several)
    if runs is None and longer is None and not runs_without_flush(scenario.schedule):
        return predict_repeated(scenario, timeline)
    return (runs or UnflushedRuns(scenario.schedule, longer)).predict(scenario, timeline)


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
