"""One schedule of a model, run, and beside a prediction of the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean

from pipesched.executor import RunSettings, uses_streams
from pipesched.profiles.models import Model
from pipesched.questions import MeasureSettings
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.ops import Phase, computes
from pipesched.simulator.analysis import compare_timelines
from pipesched.simulator.fidelity import NetworkModel
from pipesched.workflows.arguments import ModelArgument, ScheduleSource, name_for_processes
from pipesched.workflows.measuring import measured, modelled_spec
from pipesched.workflows.simulating import Prediction, Setup
from pipesched.workflows.timelines import explain_error
from pipesched.workflows.verifying.verified_schedule import VerifiedSchedule


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """One schedule of a model, run.

    Attributes:
        measured: The iteration of median makespan.
        loss: Loss of the run, as in `VerifiedSchedule`, which also has the next two fields.
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
    from pipesched.executor.runs import whole_model_losses

    schedule, size = source.schedule, setup.microbatch_size or 1
    name, made = name_for_processes(model), model if isinstance(model, Model) else None
    spec = modelled_spec(schedule, name, bounds_of(source, setup), size, settings)
    run = measured(spec, progress, made)
    losses = zip(run.losses, whole_model_losses(spec, made), strict=True)
    pairs = [pair for pair, comparable in zip(losses, with_initial_weights(schedule), strict=True) if comparable]
    return ScheduleRun(
        source,
        run.timeline,
        loss=mean(loss for loss, _ in pairs),
        whole_loss=mean(whole_loss for _, whole_loss in pairs),
        loss_difference=max(relative_difference(loss, whole_loss) for loss, whole_loss in pairs),
    )


def bounds_of(source: ScheduleSource, setup: Setup) -> tuple[tuple[int, int], ...]:
    """Return the half-open range of layers of each stage, as the profile cuts the model."""
    bounds = setup.bounds_of(source)
    assert bounds is not None, "the model is measured"
    return bounds


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

    The micro-batch with the first backward of all always does, because no stage can have stepped before. With a step
    between the micro-batches, others have losses of their own. Weights that are predicted before the first step of a
    stage are the initial ones, because there is nothing yet to predict them from.
    """
    parts = [part for row in schedule.ops for op in row for part in computes(op) if part.phase is Phase.FORWARD]
    later = {part.microbatch for part in parts if part.version}
    return [microbatch not in later for microbatch in range(schedule.num_microbatches)]
