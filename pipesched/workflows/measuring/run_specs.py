"""Preparation of runs that measure: each becomes a `RunSpec`, or is refused if it cannot run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pipesched.executor import (
    EmulationSettings,
    ExecutionError,
    FaultSettings,
    Repetitions,
    RunSettings,
    emulation,
    launch,
)
from pipesched.profiles import io
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import CostSource, StageCosts
from pipesched.questions import CutSettings, MeasureSettings, OnShare, unheard
from pipesched.schedules import Schedule
from pipesched.schedules.check import require_runnable
from pipesched.schedules.common import LONGEST_S, values_of
from pipesched.schedules.formats import to_json
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import can_sum_before_steps, with_tied_sum
from pipesched.simulator.fast import simulate_arrays
from pipesched.workflows import ArgumentError
from pipesched.workflows.arguments import (
    ListsArgument,
    ModelArgument,
    ProfileArgument,
    ScheduleSource,
    as_tied,
    name_for_processes,
    partition_text,
    read_model_argument,
    read_profile_of,
    require_as_planned,
    require_epsilon,
    require_followed,
)
from pipesched.workflows.simulating import Setup, cut_of_model, read_setup_argument, require_unused

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec


@dataclass(frozen=True)
class RunQuestion(MeasureSettings, EmulationSettings, FaultSettings, CutSettings):
    """The question of `run`; its fields are the arguments of that function."""

    schedule: ListsArgument
    model: ModelArgument | Setup | CostSource
    profile: ProfileArgument | None = field(default=None, kw_only=True)
    progress: OnShare = field(default=unheard, kw_only=True)


def spec_of(question: RunQuestion, source: ScheduleSource) -> tuple[RunSpec, ScheduleSource]:
    """Return the run of a question, with its faults and checks, and its schedule.

    Stages that share parameters sum their gradients before they step.

    Raises:
        ArgumentError: The arguments contradict each other, or the plan; a fault cannot occur; or an emulation takes too
            long.
        ExecutionError: A value is out of range, or such machines cannot be emulated.
        NotRunnableError: The lists cannot run to their end.
        ProfileError: The model does not exist, the partition does not fit, a file is bad, or costs do not fit.
        ScheduleError: Stages share parameters, and the schedule has no flush, or averages pipelines.
    """
    lists, what = source.schedule, question.model
    if lists.origin is not None:
        require_followed({lists.name: lists.traits}, question)
    if question.is_checked:
        require_runnable(lists)
    if isinstance(what, Setup | CostSource):
        spec, source = _spec_of_costs(question, source, read_setup_argument(what))
    else:
        spec, source = _spec_of_model(question, source, what)
    num_times = question.warmup + question.iterations
    return with_faults(spec, question, source.schedule, lists.num_microbatches, num_times), source


def _spec_of_model(
    question: RunQuestion, source: ScheduleSource, model: ModelArgument
) -> tuple[RunSpec, ScheduleSource]:
    """Return the run of a model, with the partition and messages of its plan, if there is one, and its schedule."""
    require_epsilon([source.schedule.traits], question)
    built = read_model_argument(model)
    if source.plan is not None:
        plan = source.plan
        require_as_planned(
            plan,
            model=built.name,
            compression=question.compression,
            partition=question.partition,
            microbatch_size=question.microbatch_size,
            profile=question.profile,
        )
        question = replace(
            question,
            partition=partition_text(plan.partition),
            microbatch_size=plan.microbatch_size,
            compression=plan.compression,
        )
    size = 1 if question.microbatch_size is None else question.microbatch_size
    profile = None if question.profile is None else read_profile_of(question.profile, built)
    bounds = cut_of_model(built, source, question.partition_text, profile, size, compression=question.compression)
    source = as_tied(source, built, bounds)
    return modelled_spec(source.schedule, name_for_processes(model), bounds, size, question), source


def modelled_spec(
    schedule: Schedule, model: str, bounds: tuple[tuple[int, int], ...], microbatch_size: int, settings: MeasureSettings
) -> launch.RunSpec:
    """Return the run of a model's layers.

    Raises:
        ExecutionError: A value is out of range.
    """
    job = launch.Measure(
        schedule=to_json(schedule), microbatch_size=microbatch_size, **values_of(settings, Repetitions)
    )
    return launch.RunSpec(job=job, model=model, bounds=bounds, **values_of(settings, RunSettings))


def _spec_of_costs(question: RunQuestion, source: ScheduleSource, setup: Setup) -> tuple[RunSpec, ScheduleSource]:
    """Return the run of stages that only take time, and its schedule, with the sum of tied gradients as predicted."""
    for name in ("microbatch_size", "partition", "compression", "profile"):
        if getattr(question, name) is not None:
            raise ArgumentError(
                f"{name}: got this argument beside a Setup, expected a field of the Setup; move the argument into the "
                "Setup"
            )
    require_unused(setup, "run", "tied_bytes")
    costs, text = setup.costs_of(source), None
    if costs.tied_bytes and can_sum_before_steps(source.schedule):
        source = replace(source, schedule=with_tied_sum(source.schedule, costs.tied_stages), longer=None)
    lists, machines = source.schedule, setup.cluster_of(source.schedule)
    if setup.cluster is not None:
        emulation.require_emulable(lists, machines)
        text = io.cluster_text(machines, "the cluster")
    repeated = values_of(question, Repetitions)
    job = launch.Measure(schedule=to_json(lists), emulate=costs, cluster=text, how=question.how, **repeated)
    spec = launch.RunSpec(job=job, **values_of(question, RunSettings))
    if question.is_checked:
        _require_patience(lists, costs, machines, spec.timeout_s)
    return spec, source


def with_faults(
    spec: RunSpec, faults: FaultSettings, lists: Schedule, num_microbatches: int, num_times: int
) -> RunSpec:
    """Return a run with injected faults and numerical checks.

    Args:
        spec: The run.
        faults: The faults and checks.
        lists: The lists of the run, or of the first step of a training.
        num_microbatches: Micro-batches of a step, or of the lists.
        num_times: Runs of the lists, or steps.

    Raises:
        ArgumentError: A fault is invalid, or cannot occur on any rank; or emulated stages have no numbers.
    """
    try:
        launch.require_there([launch.read_fault(text) for text in faults.inject], lists, num_microbatches, num_times)
        return replace(spec, **values_of(faults, FaultSettings))
    except ExecutionError as error:
        raise ArgumentError(str(error)) from error


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
