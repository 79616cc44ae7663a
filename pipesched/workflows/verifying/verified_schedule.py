"""One schedule of a model, run beside a prediction of the run; and the verification of several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import mean
from typing import TYPE_CHECKING, Any

from pipesched.executor import RunSettings, uses_streams
from pipesched.profiles.costs import Profile
from pipesched.profiles.models import Model
from pipesched.questions import MeasureSettings
from pipesched.schedules import Schedule, Timeline, Yardstick
from pipesched.schedules.ops import Phase, computes
from pipesched.simulator import views
from pipesched.simulator.analysis import Comparison, compare_timelines, readable_change
from pipesched.simulator.fidelity import NetworkModel
from pipesched.workflows import Result, Table, merged_notes, other_speed, timeline_notes
from pipesched.workflows.arguments import ModelArgument, ScheduleSource, name_for_processes
from pipesched.workflows.measuring import measured, modelled_spec
from pipesched.workflows.simulating import Prediction, Setup
from pipesched.workflows.timelines import Explanation, comparison_table, explain_error, split_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LOSS_TOLERANCE = 1e-5
"""Relative; the sums run in the same order, so float32 agrees to its last digits."""


@dataclass(frozen=True, slots=True, repr=False)
class VerifiedSchedule:
    """One schedule, predicted and run.

    Attributes:
        predicted: The Timeline that the profile predicts.
        measured: The iteration of median makespan.
        comparison: Every quantity in both, and their differences.
        explanation: Why the prediction is off.
        loss: Mean over all micro-batches. If pipelines are averaged, or lists with steps between micro-batches split
            backwards, the mean is over the micro-batches whose forwards all read the initial weights.
        whole_loss: Loss of the model without a pipeline, on the same micro-batches, with the same steps between them.
        loss_difference: Largest relative difference of the loss of a micro-batch; infinite if a loss is not a number.
    """

    predicted: Timeline
    measured: Timeline
    comparison: Comparison
    explanation: Explanation
    loss: float
    whole_loss: float
    loss_difference: float

    def __repr__(self) -> str:
        return (
            f"VerifiedSchedule({self.name!r}, makespan_error={self.makespan_error:+.4g}, "
            f"loss_difference={self.loss_difference:.2g})"
        )

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return self.comparison.name

    @property
    def makespan_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.makespan_s / self.measured.makespan_s - 1

    @property
    def agrees(self) -> bool:
        """Whether the losses of the run equal the losses of the model without a pipeline."""
        return self.loss_difference <= LOSS_TOLERANCE

    @property
    def losses(self) -> str:
        """The losses with and without a pipeline, in a line."""
        return (
            f"{self.name}: loss {self.loss:.6f}, un-pipelined model {self.whole_loss:.6f}; "
            f"largest relative difference of a micro-batch {self.loss_difference:.2g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        difference = self.loss_difference if math.isfinite(self.loss_difference) else None
        return {**self.comparison.to_dict(), **self.explanation.to_dict(), "largest_loss_difference": difference}

    def plot(self) -> Figure:
        """Draw both on one time axis, the rows of a rank together, with why the prediction is off."""
        title = f"{self.name}: predicted makespan {readable_change(self.makespan_error)} off the measured one"
        return views.gantt_figure([self.predicted, self.measured], title, self.explanation.sentence)


def notes_on_runs(schedules: Sequence[VerifiedSchedule]) -> list[str]:
    """Return the notes on the runs of schedules, with names if there are several."""
    whose = [f"{verified.name}: " if len(schedules) > 1 else "" for verified in schedules]
    return merged_notes(
        (verified.name, f"{name}{note}")
        for verified, name in zip(schedules, whose, strict=True)
        for note in timeline_notes(verified.measured)
    )


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Result):
    """Several schedules of one model, each predicted and run.

    Attributes:
        schedules: The schedules, in the given order.
        profile: Profile of the predictions.
    """

    schedules: tuple[VerifiedSchedule, ...]
    profile: Profile

    def __repr__(self) -> str:
        return f"Verification({self.profile.model!r}, {list(self.schedules)})"

    @property
    def representative(self) -> tuple[VerifiedSchedule, ...]:
        """The result of each schedule."""
        return self.schedules

    @property
    def verdicts(self) -> list[str]:
        """Empty: one run gives no verdict."""
        return []

    @property
    def agrees(self) -> bool:
        """Whether the losses of all runs equal the losses of the model without a pipeline."""
        return all(verified.agrees for verified in self.schedules)

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds, a line each."""
        runs = [verified.measured for verified in self.schedules]
        speed = other_speed(self.profile.provenance.yardstick, Yardstick.mean(run.yardstick for run in runs))
        return [*speed, *notes_on_runs(self.schedules)]

    def __getitem__(self, name: str) -> VerifiedSchedule:
        """Return the schedule `name`.

        Raises:
            KeyError: The schedule does not exist.
        """
        schedule = next((verified for verified in self.schedules if verified.name == name), None)
        if schedule is None:
            names = ", ".join(verified.name for verified in self.schedules)
            raise KeyError(f"{name}: expected one of {names}")
        return schedule

    def to_frame(self) -> pd.DataFrame:
        """Return a row per schedule: both makespans [s], the error and its parts, and the largest loss difference."""
        import pandas as pd

        rows = [
            {
                "name": verified.name,
                "predicted_s": verified.predicted.makespan_s,
                "measured_s": verified.measured.makespan_s,
                "makespan_error": verified.makespan_error,
                **verified.explanation.shares(),
                "loss": verified.loss,
                "whole_loss": verified.whole_loss,
                "loss_difference": verified.loss_difference,
            }
            for verified in self.schedules
        ]
        return pd.DataFrame(rows).set_index("name")

    def plot(self) -> Figure:
        """Draw the prediction and the measurement of every schedule one under another."""
        return views.gantt_figure(
            [line for schedule in self.schedules for line in (schedule.predicted, schedule.measured)]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched verify --json`` prints it."""
        return {"schedules": [verified.to_dict() for verified in self.schedules]}

    def tables(self) -> list[Table]:
        """Return a table for each schedule, the parts of the errors, and the losses."""
        losses = "\n".join(verified.losses for verified in self.schedules)
        comparisons = [comparison_table([verified.comparison]) for verified in self.schedules]
        return [*comparisons, self.split_table(), Table("", (), losses)]

    def table(self) -> Table:
        """Return every quantity of every schedule, predicted and measured, formatted for people."""
        return comparison_table([verified.comparison for verified in self.schedules])

    def split_table(self) -> Table:
        """Return the parts of the errors, and a sentence on each makespan."""
        return split_table([verified.explanation for verified in self.schedules])


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """The run of one schedule of a model.

    Attributes:
        measured: The iteration with the median makespan.
        loss: As in `VerifiedSchedule`.
        whole_loss: As in `VerifiedSchedule`.
        loss_difference: As in `VerifiedSchedule`.
    """

    source: ScheduleSource
    measured: Timeline
    loss: float
    whole_loss: float
    loss_difference: float


def with_buffers_of(settings: RunSettings, setup: Setup) -> Setup:
    """Return the setup with receive buffers as a run with these settings allocates them."""
    is_at_use = settings.device == "cuda" and uses_streams(settings)
    return replace(setup, buffers="at_use" if is_at_use else "pooled")


def run_source(
    source: ScheduleSource,
    model: ModelArgument,
    setup: Setup,
    settings: MeasureSettings,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> ScheduleRun:
    """Run one schedule, and compare its losses with the losses of the whole model.

    Args:
        source: Source of the schedule.
        model: The model, or its name.
        setup: Setup of the prediction, from a profile that determines the cut of the model.
        settings: Settings of the run.
        progress: Receives the finished fraction of all ops now and then.
    """
    from pipesched.executor.runs import recurrence_losses, whole_model_losses

    schedule, size = source.schedule, setup.microbatch_size or 1
    name, made = name_for_processes(model), model if isinstance(model, Model) else None
    spec = modelled_spec(schedule, name, setup.bounds_of(source), size, settings)
    run = measured(spec, progress, made)
    expected, comparable = recurrence_losses(spec, made), [True] * schedule.num_microbatches
    if expected is None:
        expected, comparable = whole_model_losses(spec, made), with_initial_weights(schedule)
    pairs = [*compress(zip(run.losses, expected, strict=True), comparable)]
    return ScheduleRun(
        source,
        run.timeline,
        loss=mean(loss for loss, _ in pairs),
        whole_loss=mean(whole_loss for _, whole_loss in pairs),
        loss_difference=max(relative_difference(loss, whole_loss) for loss, whole_loss in pairs),
    )


def held_against(run: ScheduleRun, prediction: Prediction, setup: Setup) -> VerifiedSchedule:
    """Return a run beside a prediction of it under this setup."""
    network = NetworkModel(prediction.costs, prediction.cluster, setup.network)
    return VerifiedSchedule(
        prediction.timeline,
        run.measured,
        compare_timelines(prediction.timeline, run.measured),
        explain_error(run.measured, prediction.timeline, network, than="in the profile"),
        loss=run.loss,
        whole_loss=run.whole_loss,
        loss_difference=run.loss_difference,
    )


def relative_difference(value: float, expected: float) -> float:
    """Return the deviation of `value`, relative to `expected`; infinite if one of them is not a number."""
    if not (math.isfinite(value) and math.isfinite(expected)):
        return math.inf  # max() would pass over a NaN
    if value == expected:
        return 0.0
    return abs(value - expected) / abs(expected) if expected else math.inf


def with_initial_weights(schedule: Schedule) -> list[bool]:
    """Return for each micro-batch whether all its forwards read the initial weights, as the whole model does.

    The micro-batch with the very first backward always does, because no stage can have stepped before. With steps
    between the micro-batches, the losses of other micro-batches differ from the whole model. Weights that are predicted
    before the first step of a stage are the initial weights, because there is nothing yet to predict from.
    """
    parts = [part for row in schedule.ops for op in row for part in computes(op) if part.phase is Phase.FORWARD]
    later = {part.microbatch for part in parts if part.version}
    return [microbatch not in later for microbatch in range(schedule.num_microbatches)]
