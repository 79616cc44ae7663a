"""Preparation of runs that measure: each becomes a `RunSpec`, or is refused if it cannot run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipesched.executor import RunSettings
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.check import require_runnable
from pipesched.schedules.common import LONGEST_S
from pipesched.schedules.formats import to_json
from pipesched.schedules.lowering import lower
from pipesched.simulator.fast import simulate_arrays
from pipesched.workflows import ArgumentError
from pipesched.workflows.arguments import (
    ModelArgument,
    ProfileArgument,
    ScheduleSource,
    name_for_processes,
    partition_text,
    read_model_argument,
    read_profile_of,
    require_as_planned,
    require_epsilon,
    require_followed,
)
from pipesched.workflows.simulating import Setup, cut_of_model

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec


def prepare_run(
    source: ScheduleSource,
    model: ModelArgument,
    settings: RunSettings,
    *,
    microbatch_size: int | None = None,
    partition: str | None = None,
    profile: ProfileArgument | None = None,
    is_checked: bool = True,
    **counts: Any,
) -> RunSpec:
    """Return the run of a model, with the partition and messages of its plan, if there is one.

    Args:
        source: The schedule to run.
        model: The model, or its name.
        settings: Settings of the run.
        microbatch_size: Samples of a micro-batch; None: 1, or as planned.
        partition: ``uniform``, ``balanced`` with a profile, or layers per stage as ``3,3,4``; None: balanced with a
            profile, uniform without, or as planned.
        profile: Profile of the model, for the partition.
        is_checked: Whether lists that cannot finish are refused.
        counts: Numbers of iterations: fields of `Measure`.

    Raises:
        ArgumentError: The arguments contradict each other, or the plan.
        ExecutionError: A value is out of range.
        NotRunnableError: The lists cannot run to their end.
        ProfileError: The model does not exist, the partition does not fit, or the profile is bad.
    """
    lists = source.schedule
    _require_lists(lists, settings, is_checked=is_checked)
    require_epsilon([lists.traits], settings)
    built = read_model_argument(model)
    if source.plan is not None:
        plan = source.plan
        require_as_planned(
            plan,
            model=built.name,
            compression=settings.compression,
            partition=partition,
            microbatch_size=microbatch_size,
            profile=profile,
        )
        partition, microbatch_size = partition_text(plan.partition), plan.microbatch_size
        settings = replace(settings, compression=plan.compression)
    size = 1 if microbatch_size is None else microbatch_size
    layers = None if profile is None else read_profile_of(profile, built)
    bounds = cut_of_model(built, source, partition, layers, size, compression=settings.compression)
    return modelled_spec(lists, name_for_processes(model), bounds, size, settings, is_checked=is_checked, **counts)


def prepare_emulation(
    source: ScheduleSource,
    setup: Setup,
    settings: RunSettings,
    *,
    is_checked: bool = True,
    **measured_how: Any,
) -> RunSpec:
    """Return the run of stages that only take time.

    Args:
        source: The schedule to run.
        setup: Costs of the stages, and machines whose links delay messages; without machines, messages take their
            real time.
        settings: Settings of the run; the setup alone sets the compression.
        is_checked: Whether lists that cannot finish, or would take too long, are refused.
        measured_how: Fields of `Measure`.

    Raises:
        ArgumentError: The arguments contradict each other, or the plan; or the run takes too long.
        ExecutionError: A value is out of range, or such machines cannot be emulated.
        NotRunnableError: The lists cannot run to their end.
        ProfileError: The costs do not fit the schedule.
    """
    lists = source.schedule
    _require_lists(lists, settings, is_checked=is_checked)
    costs, machines = setup.costs_of(source), setup.cluster_of(lists)
    cluster = None if setup.cluster is None else machines
    spec = _emulating_spec(lists, costs, cluster, settings, is_checked=is_checked, **measured_how)
    if is_checked:
        _require_patience(lists, costs, machines, spec.timeout_s)
    return spec


def _require_lists(lists: Schedule, settings: RunSettings, *, is_checked: bool) -> None:
    if lists.origin is not None:
        require_followed({lists.name: lists.traits}, settings)
    if is_checked:
        require_runnable(lists)


def modelled_spec(
    schedule: Schedule,
    model: str,
    bounds: tuple[tuple[int, int], ...],
    microbatch_size: int,
    settings: RunSettings,
    **measured_how: Any,
) -> RunSpec:
    """Return the run of a model's layers; `measured_how` are fields of `Measure`.

    Raises:
        ExecutionError: A value is out of range.
    """
    from pipesched.executor.launch import Measure, RunSpec

    job = Measure(schedule=to_json(schedule), microbatch_size=microbatch_size, **measured_how)
    return RunSpec(job=job, model=model, bounds=bounds, **settings.values())


def _emulating_spec(
    schedule: Schedule, costs: StageCosts, cluster: Cluster | None, settings: RunSettings, **measured_how: Any
) -> RunSpec:
    """Return the run of stages that only take time; `measured_how` are fields of `Measure`.

    Args:
        schedule: The schedule to run.
        costs: Costs of the schedule's stages, with compressed messages if compression is on.
        cluster: Machines whose links delay messages; None: messages take their real time.
        settings: Settings of the run; the costs alone set the compression.

    Raises:
        ExecutionError: A value is out of range, or such machines cannot be emulated.
    """
    from pipesched.executor.emulation import require_emulable
    from pipesched.executor.launch import Measure, RunSpec
    from pipesched.profiles.io import cluster_text

    if cluster is not None:
        require_emulable(schedule, cluster)
    text = None if cluster is None else cluster_text(cluster, "the cluster")
    job = Measure(schedule=to_json(schedule), emulate=costs, cluster=text, **measured_how)
    return RunSpec(job=job, **replace(settings, compression=None).values())


def _require_patience(schedule: Schedule, costs: StageCosts, cluster: Cluster, timeout_s: float) -> None:
    """Refuse an emulation that is predicted to take too long, or to make a rank wait longer than the timeout.

    Raises:
        ArgumentError: The prediction is too long.
    """
    timeline = simulate_arrays(lower(schedule), costs, cluster)
    if not timeline.makespan_s <= LONGEST_S:
        raise ArgumentError(
            f"costs: got a list that is predicted to take {timeline.makespan_s:.3g} s, expected at most a week "
            f"({LONGEST_S:g}); try smaller costs"
        )
    works = [span for span in timeline.spans if span.is_work]
    if not works:
        return
    longest = max(works, key=lambda span: span.start_s - span.posted_s)
    wait_s = longest.start_s - longest.posted_s
    if wait_s > timeout_s:
        raise ArgumentError(
            f"timeout_s: got {timeout_s:g} s, but {longest.op} of rank {longest.rank} is predicted to wait "
            f"{wait_s:.3g} s, expected more; try {math.ceil(2 * wait_s)}, or smaller costs"
        )
