"""The steady time of a schedule: seconds per micro-batch when the batch, or the run without a flush, goes on."""

from __future__ import annotations

from pipesched.schedules import ScheduleError, Timeline
from pipesched.simulator import Inexact, Scenario, SimulationError
from pipesched.simulator.fast import predict_repeated, predict_unflushed
from pipesched.workflows.arguments import ScheduleSource


def steady_s_per_microbatch(source: ScheduleSource, timeline: Timeline, scenario: Scenario) -> float | None:
    """Return the seconds of a micro-batch in the long run; None where they are not known.

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
    return None if isinstance(answer, Inexact) else answer.seconds / scenario.schedule.num_microbatches
