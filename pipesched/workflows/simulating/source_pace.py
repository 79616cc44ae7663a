"""The steady pace of a schedule: time and bubble when the batch, or the run without a flush, goes on."""

from __future__ import annotations

from pipesched.schedules import ScheduleError, Timeline
from pipesched.simulator import Inexact, Scenario, SimulationError, SteadyPace
from pipesched.simulator.fast import predict_repeated, predict_unflushed
from pipesched.workflows.arguments import ScheduleSource


def pace_of_source(source: ScheduleSource, timeline: Timeline, scenario: Scenario) -> SteadyPace | None:
    """Return the pace in the long run; None where it is not known.

    Args:
        source: A batch, which is repeated, each stage stepping once between; or a run without a flush.
        timeline: Timeline of the schedule's lists, simulated without jitter.
        scenario: What was simulated.
    """
    try:
        if source.longer is None:
            answer = predict_repeated(scenario, timeline)
        else:
            answer = predict_unflushed(scenario, source.longer, timeline)
    except (ScheduleError, SimulationError):  # lists that cannot go on, whether they should
        return None
    return None if isinstance(answer, Inexact) else answer.pace(scenario.schedule.num_microbatches)
