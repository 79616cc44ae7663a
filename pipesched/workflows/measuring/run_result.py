"""The result of a measured run, beside the prediction of its plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.schedules import Schedule, Timeline, Yardstick
from pipesched.simulator.analysis import Metrics, metrics, readable_bytes, readable_s, readable_share
from pipesched.workflows import NOT_ONE_SPEED, Table, other_speed, timeline_notes
from pipesched.workflows.arguments import ProfileArgument, ScheduleSource, read_profile_argument
from pipesched.workflows.measuring.planned_run import PlannedRun, hold_against_plan

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.executor.runs import Measured


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """A schedule, run and measured.

    Attributes:
        schedule: The schedule's lists.
        timeline: The iteration of median makespan, with memory samples of a model.
        makespans_s: Makespan of every measured iteration.
        losses: Mean loss of every micro-batch from the initial weights; empty when emulated.
        metrics: Metrics of the Timeline.
        planned: The prediction of the plan beside the measurement; None without a plan.
        profiled: Speed of the machine during the profile, or the profile of the plan; None if unknown.
    """

    schedule: Schedule
    timeline: Timeline
    makespans_s: tuple[float, ...]
    losses: tuple[float, ...]
    metrics: Metrics
    planned: PlannedRun | None = None
    profiled: Yardstick | None = None

    def __repr__(self) -> str:
        return f"RunResult({self.schedule.name!r}, makespan_s={self.makespan_s:.6g}, losses={len(self.losses)})"

    @property
    def makespan_s(self) -> float:
        """The makespan of the median iteration [s]."""
        return self.metrics.makespan_s

    @property
    def bubble_fraction(self) -> float:
        """Idle share of all device time."""
        return self.metrics.bubble_fraction

    @property
    def first_loss(self) -> float | None:
        """The mean loss from the initial weights; None when emulated."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds, a line each."""
        speeds = (self.profiled, self.timeline.yardstick)
        speed = other_speed(*speeds, NOT_ONE_SPEED) if self.planned is None else other_speed(*speeds)
        return [*speed, *timeline_notes(self.timeline)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched run --json`` prints it."""
        loss = self.first_loss
        return {
            "schedule": self.schedule.name,
            **self.metrics.to_dict(),
            "throughput_unit": "micro-batches per second",
            "makespans_s": self.makespans_s,
            "first_loss": loss if loss is None or math.isfinite(loss) else None,
            **({} if self.planned is None else {"planned": self.planned.to_dict()}),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per device: its time [s], idle time by cause, and peak memory."""
        return self.metrics.to_frame()

    def plot(self) -> Figure:
        """Draw the Timeline."""
        from pipesched.simulator.views import gantt_figure

        return gantt_figure([self.timeline])

    def table(self) -> Table:
        """Return a row per device, formatted for people."""
        loss = "" if self.first_loss is None else f"; mean loss at the start {self.first_loss:.6g}"
        rows = [
            {
                "device": str(device.device),
                "busy": readable_s(device.busy_s),
                "idle": readable_s(device.idle_s),
                "peak memory": readable_bytes(device.peak_memory_bytes),
            }
            for device in self.metrics.devices
        ]
        caption = (
            f"makespan {readable_s(self.makespan_s)} (median of {len(self.makespans_s)})"
            f"; bubble_fraction {readable_share(self.bubble_fraction)}{loss}"
        )
        return Table(f"{self.schedule.name}, measured", tuple(rows), caption)

    def _repr_html_(self) -> str:
        return self.table().noted(self.notes).to_html() + (
            "" if self.planned is None else self.planned.table().to_html()
        )


def result_of(source: ScheduleSource, measured: Measured, profile: ProfileArgument | None = None) -> RunResult:
    """Return the result of a run with its metrics, beside the prediction of its plan if there is one.

    Args:
        source: The schedule of the run.
        measured: The measurement.
        profile: Profile for the partition of the model; None: no profile, or the plan's.
    """
    schedule, timeline = source.schedule, measured.timeline
    measures = metrics(timeline)
    planned = None if source.plan is None else hold_against_plan(source.plan, schedule, timeline, measures)
    profiled = None if source.plan is None else source.plan.yardstick
    if profile is not None:
        profiled = read_profile_argument(profile).provenance.yardstick
    return RunResult(schedule, timeline, measured.makespans_s, measured.losses, measures, planned, profiled)
