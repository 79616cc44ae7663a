"""The cut of a model for a run or a training: as a prediction cuts it by its profile, or evenly without a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesched.profiles import MessagePrecision
from pipesched.profiles.costs import Profile
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import TrainingRun
from pipesched.workflows.arguments import ClusterArgument, ScheduleSource, cut_model
from pipesched.workflows.simulating.setup import Setup

if TYPE_CHECKING:
    from pipesched.profiles.models import Model

_STEPS_PER_RANK = 4
"""Steps per rank of a run without a flush, for the choice of its cut."""


def cut_of_model(
    model: Model,
    source: ScheduleSource,
    partition: str | None,
    profile: Profile | None,
    microbatch_size: int,
    *,
    cluster: ClusterArgument = None,
    compression: MessagePrecision | None = None,
) -> tuple[tuple[int, int], ...]:
    """Return the half-open range of layers of each stage.

    Args:
        model: The model to cut.
        source: The schedule of the run.
        partition: ``balanced`` (None, with a profile), ``uniform`` (None, without), or layers per stage as ``3,3,4``.
        profile: Profile of the model.
        microbatch_size: Samples of a micro-batch.
        cluster: Machines; None: equal ones whose links take no time.
        compression: Compression of messages.

    Raises:
        ArgumentError: The partition is ``balanced`` without a profile.
        ProfileError: The partition does not fit the model.
    """
    if profile is None:
        return cut_model(model, source.schedule.num_stages, partition)
    setup = Setup(
        costs=profile,
        cluster=cluster,
        microbatch_size=microbatch_size,
        partition=partition,
        compression=compression,
    )
    bounds = setup.bounds_of(ScheduleSource(source.schedule, source.longer))
    assert bounds is not None, "a profile has layers"
    return bounds


def source_of_training(run: TrainingRun) -> ScheduleSource:
    """Return the lists that a training repeats; without a flush, the lists of its first steps."""
    if run.flush_steps is not None:
        return ScheduleSource(run.lists(run.flush_steps).held())
    num_steps = _STEPS_PER_RANK * run.beginning(1).num_ranks

    def longer(times: int) -> Schedule:
        return run.beginning(times * num_steps).held()

    return ScheduleSource(longer(1), longer)
