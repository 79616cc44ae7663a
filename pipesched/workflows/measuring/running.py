"""Run a schedule with real processes, one per rank, and measure every op; and the result, beside its plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipesched.executor import runs
from pipesched.profiles.io import Plan
from pipesched.profiles.models import Model
from pipesched.schedules import Schedule, Timeline, Yardstick
from pipesched.simulator import views
from pipesched.simulator.analysis import (
    Comparison,
    Metrics,
    Quantity,
    metrics,
    readable_bytes,
    readable_s,
    readable_share,
)
from pipesched.workflows import NOT_ONE_SPEED, Result, Table, asks, is_rank, other_speed, timeline_notes
from pipesched.workflows.arguments import (
    ProfileArgument,
    ScheduleSource,
    as_clipped,
    read_lists_argument,
    read_profile_argument,
    require_possible,
)
from pipesched.workflows.measuring.run_specs import RunQuestion, spec_of
from pipesched.workflows.timelines import Explanation, comparison_table, explain_error

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.executor.launch import RunSpec
    from pipesched.executor.runs import Measured


@asks(RunQuestion)
def run(question: RunQuestion) -> RunResult:
    """Run a schedule, one process per rank, and measure every op.

    The processes are started here, on this machine. In a script that torchrun has started, this process joins as its
    rank instead, and every process gets the result. `close` ends the processes that stay for the next run.

    Args:
        schedule: A Schedule, as `build` makes it, a Plan, or a file of either.
        model: A name as `profile` takes it, a plan's own, a function of a module, or a Model made from a name; under
            torchrun any Model. Or a `Setup`, or its costs, to emulate: stages only take time, and links delay messages;
            without machines, messages take their real time.
        profile: Profile of the model, for the partition: ``balanced`` with a profile, ``uniform`` without.
        progress: Receives the finished fraction of all ops now and then.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: A bad file.
        ProfileError: The model does not exist, the partition does not fit, or a file is bad.
        ExecutionError: A value is out of range.
        RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch. All others are ended.
    """
    require_possible(question)
    source = as_clipped(read_lists_argument(question.schedule), question.clip_grad_norm)
    spec, source = spec_of(question, source)
    made = question.model if isinstance(question.model, Model) else None
    return result_of(source, measured(spec, question.progress, made), question.profile)


@asks(RunQuestion)
def run_job(question: RunQuestion) -> RunSpec:
    """Return the job of a run, as `run` does it, for ``torchrun -m pipesched.executor``."""
    return spec_of(question, as_clipped(read_lists_argument(question.schedule), question.clip_grad_norm))[0]


def measured(
    spec: RunSpec,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    model: Model | None = None,
) -> runs.Measured:
    """Run a measuring job: as a rank if torchrun has started this process, otherwise in processes that it starts.

    Args:
        spec: Specification of the run.
        progress: Receives the finished fraction of all ops now and then.
        model: The named model of the run, as under torchrun; None: the name is looked up.

    Raises:
        RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch.
    """
    if not is_rank():
        return runs.launch(spec, progress)
    measured = runs.run_rank(spec, is_shared=True, model=model)
    assert isinstance(measured, runs.Measured), "its job measures"
    return measured


@dataclass(frozen=True, slots=True, repr=False)
class RunResult(Result):
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
        return views.gantt_figure([self.timeline])

    def tables(self) -> list[Table]:
        """Return the measurement, and the prediction of the plan if there is one."""
        return [self.table(), *([] if self.planned is None else [self.planned.table()])]

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


_PACE = (
    "the plan predicts the steady-state time of a long run, which is not comparable with the makespan of a short run"
)


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
