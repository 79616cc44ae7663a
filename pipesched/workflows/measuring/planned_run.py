"""A run of a plan beside the prediction of the plan, and why the prediction is off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pipesched.profiles.io import Plan
from pipesched.schedules import Schedule, Timeline
from pipesched.simulator.analysis import Comparison, Metrics, Quantity
from pipesched.workflows import Table
from pipesched.workflows.timelines import Explanation, comparison_table, explain_error

_PACE = "the plan predicts the pace of a long run, which the makespan of a short one does not say"


@dataclass(frozen=True, slots=True, repr=False)
class PlannedRun:
    """The prediction of a plan beside the measurement.

    Attributes:
        comparison: Makespan, bubble and the peak memory of each device; without the makespan for a plan without a
            flush.
        explanation: Why the makespan is off; `costs` includes the messages of the plan. None without a flush.
    """

    comparison: Comparison
    explanation: Explanation | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        explained = {} if self.explanation is None else self.explanation.to_dict()
        return {"quantities": self.comparison.to_rows(), **explained}

    def table(self) -> Table:
        """Return a row per device, formatted for people; below, makespan, bubble and why they are off."""
        table = comparison_table([self.comparison])
        sentence = _PACE if self.explanation is None else self.explanation.sentence
        title = f"{self.comparison.name}, as planned and as measured"
        return replace(table, title=title, caption=f"{table.caption}\n{sentence}")


def hold_against_plan(plan: Plan, schedule: Schedule, timeline: Timeline, measures: Metrics) -> PlannedRun:
    """Return the run of a plan's lists beside the plan's prediction.

    Args:
        plan: The plan with its prediction.
        schedule: The lists of the plan.
        timeline: The run of the lists.
        measures: The metrics of the run.
    """
    planned, explanation = plan.predicted, None
    quantities = []
    if not schedule.traits.is_asynchronous:
        quantities.append(Quantity("makespan_s", None, planned.seconds, measures.makespan_s))
        explanation = explain_error(timeline, predicted_s=planned.seconds, than="planned")
    quantities.append(Quantity("bubble_fraction", None, planned.bubble_fraction, measures.bubble_fraction))
    for device, held_bytes in zip(measures.devices, planned.memory_bytes, strict=False):
        quantities.append(Quantity("peak_memory_bytes", device.device, held_bytes, device.peak_memory_bytes))
    return PlannedRun(Comparison(timeline.name, tuple(quantities), ()), explanation)
