"""Run a schedule of a model, predict it from a profile, and compare the two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from pipesched.executor import RunSettings, uses_streams
from pipesched.profiles.costs import Profile
from pipesched.profiles.models import Model
from pipesched.profiles.partitioning import parse_partition
from pipesched.profiles.processes import num_companions
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.check import require_runnable
from pipesched.schedules.ops import Phase, computes
from pipesched.simulator.analysis import compare_timelines
from pipesched.simulator.fidelity import NetworkModel
from pipesched.workflows import ArgumentError
from pipesched.workflows.arguments import (
    ClusterArgument,
    ModelArgument,
    ProfileArgument,
    ScheduleSource,
    name_for_processes,
    read_cluster_argument,
    read_profile_of,
)
from pipesched.workflows.measuring import measured, modelled_spec
from pipesched.workflows.measuring import profile as profile_layers
from pipesched.workflows.simulating import Prediction, Setup, predict_source
from pipesched.workflows.timelines import explain_error
from pipesched.workflows.verifying.verified_schedule import VerifiedSchedule


def require_verifiable(
    schedules: Sequence[Schedule], model: Model, partition: str | None, cluster: ClusterArgument
) -> None:
    """Refuse schedules that cannot run or cannot be predicted, before anything is measured.

    Raises:
        ArgumentError: There are too few devices.
        NotRunnableError: Lists cannot run to their end.
        ProfileError: The partition does not fit the model.
    """
    for schedule in schedules:
        require_runnable(schedule)
        parse_partition(partition or "uniform", (1.0,) * len(model.layers), schedule.num_stages)
        read_cluster_argument(cluster, max(schedule.rank_to_device) + 1, f"schedule {schedule.name}")


def profile_for_runs(
    model: Model,
    microbatch_size: int,
    num_ranks: int,
    profile: ProfileArgument | None,
    settings: RunSettings,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    *,
    repeats: int = 10,
    warmup: int = 3,
) -> Profile:
    """Return the profile, or measure one while other cores are as busy as in a run of `num_ranks` ranks.

    Args:
        model: The model of the run.
        microbatch_size: Samples.
        num_ranks: Ranks of the run.
        profile: Profile, or None to measure one.
        settings: Settings of the run.
        progress: Receives the finished fraction now and then.
        repeats: Measured runs of each layer, of which the median counts.
        warmup: Runs before them.

    Raises:
        ArgumentError: The profile is of another model, dtype or optimizer than the run.
        ProfileError: The file is no profile, or the model fails.
    """
    if profile is None:
        return profile_layers(
            model,
            [microbatch_size],
            repeats=repeats,
            warmup=warmup,
            optimizer=settings.optimizer,
            dtype=settings.dtype,
            device=settings.device,
            threads=settings.threads,
            companions=num_companions(num_ranks, settings.device),
            seed=settings.seed,
            progress=progress,
        ).profile
    loaded = read_profile_of(profile, model)
    where = "profile" if isinstance(profile, Profile) else profile
    for name, profiled, wanted in (
        ("dtype", loaded.provenance.dtype, settings.dtype),
        ("optimizer", loaded.provenance.optimizer, settings.optimizer),
    ):
        if profiled != wanted:
            raise ArgumentError(
                f"{where}: {name}: got a profile measured with {profiled}, expected {wanted} as in the run; "
                f"try `{name}={profiled}`, or leave out `profile`"
            )
    return loaded


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


def verify_source(
    source: ScheduleSource,
    model: ModelArgument,
    setup: Setup,
    settings: RunSettings,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    **measured_how: Any,
) -> VerifiedSchedule:
    """Predict and run one schedule, and compare its losses with the losses of the whole model.

    Args:
        source: Source of the schedule.
        model: The model, or its name.
        setup: Setup of the prediction, from a profile that determines the cut of the model; the run
            determines the buffers.
        settings: Settings of the run.
        progress: Receives the finished fraction of all ops now and then.
        measured_how: Fields of `Measure`.
    """
    setup = with_buffers_of(settings, setup)
    prediction = predict_source(source, setup)
    return held_against(run_source(source, model, setup, settings, progress, **measured_how), prediction, setup)


def with_buffers_of(settings: RunSettings, setup: Setup) -> Setup:
    """Return the setup with receive buffers as a run with these settings allocates them."""
    is_at_use = settings.device == "cuda" and uses_streams(settings)
    return replace(setup, buffers="at_use" if is_at_use else "pooled")


def run_source(
    source: ScheduleSource,
    model: ModelArgument,
    setup: Setup,
    settings: RunSettings,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    **measured_how: Any,
) -> ScheduleRun:
    """Run one schedule, cut as `verify_source` does."""
    from pipesched.executor.runs import whole_model_losses

    schedule, size = source.schedule, setup.microbatch_size or 1
    name, made = name_for_processes(model), model if isinstance(model, Model) else None
    spec = modelled_spec(schedule, name, bounds_of(source, setup), size, settings, **measured_how)
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
