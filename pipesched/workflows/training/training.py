"""Train a model under a schedule: all ranks in this process, or one process per rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.profiles.io import Plan
from pipesched.profiles.models import draw_batch
from pipesched.profiles.processes import prints_to_stderr
from pipesched.schedules import Schedule
from pipesched.schedules.builders import ParameterValue, build_entry
from pipesched.schedules.check import require_runnable
from pipesched.schedules.common import shown
from pipesched.schedules.formats import read_schedule, to_json
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.simulator.analysis import readable_reason
from pipesched.workflows import (
    MAX_INT64,
    ArgumentError,
    is_rank,
    require_at_least,
    require_callable,
    require_choice,
    require_flag,
    require_optional,
    require_path,
)
from pipesched.workflows.arguments import (
    Builder,
    ClusterArgument,
    CostsArgument,
    ModelArgument,
    PartitionArgument,
    ProfileArgument,
    RunKeywords,
    entry_of,
    given_plan,
    load_costs,
    name_for_processes,
    named_schedule,
    partition_text,
    read_cluster_argument,
    read_model_argument,
    read_profile_of,
    read_settings,
    require_as_planned,
    require_counts,
    require_epsilon,
    require_followed,
    require_no_counts,
    require_possible,
)
from pipesched.workflows.simulating import cut_of_model, source_of_training
from pipesched.workflows.training.checkpoint_arguments import checkpoint_settings, require_restartable
from pipesched.workflows.training.training_forecast import TrainingForecast, forecast_training
from pipesched.workflows.training.training_jobs import (
    costs_of_training,
    require_cut,
    require_few,
    trained_by,
    training_spec,
)
from pipesched.workflows.training.training_result import TrainingResult

if TYPE_CHECKING:
    from pipesched.executor.training import OnStep

TrainableSchedule: TypeAlias = ScheduleSpec | Plan | Schedule | Builder | str | Path
_OF_PROCESSES = ("transport", "has_green_contexts", "backend", "timeout_s", "is_pinned", "save")
"""Keywords that have an effect only where every rank has a process of its own."""


def train(
    model: ModelArgument,
    schedule: TrainableSchedule,
    *,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    batch_size: int | None = None,
    num_steps: int = 100,
    partition: PartitionArgument | None = None,
    profile: ProfileArgument | None = None,
    costs: CostsArgument | None = None,
    cluster: ClusterArgument = None,
    is_distributed: bool = False,
    advance: Literal["auto"] | None = None,
    limit_bytes: int | None = None,
    on_step: OnStep | None = None,
    held_out_every: int | None = None,
    checkpoint: Path | str | None = None,
    every: int | None = None,
    keep: int | None = None,
    resume: Path | str | None = None,
    restarts: int = 0,
    export: Path | str | None = None,
    **keywords: Unpack[RunKeywords],
) -> TrainingResult:
    """Train a model under a schedule. A run that diverges ends there, and is a result.

    In a script that torchrun has started, this process joins as its rank, and every process gets the result. Under
    torchrun the final weights are not judged, and a run that diverges continues. `close` ends processes that stay
    for the next run.

    Args:
        model: A Model, or a name as `profile` takes it; with a plan, the model of the plan.
        schedule: A name of the catalogue, or a builder of your own, with `num_ranks`, a ScheduleSpec, a Plan, a
            Schedule, or a file of one.
        num_ranks: Ranks of a schedule given by name.
        num_microbatches: Micro-batches per batch of a schedule given by name; None: the number of ranks.
        num_chunks: Stages per rank of a schedule given by name, where it takes them.
        parameters: Parameters of a schedule given by name, as its entry of the catalogue lists them.
        batch_size: Samples of a step, of each pipeline if several are averaged; None: 64, or as planned.
        num_steps: Optimizer steps.
        partition: ``uniform``, ``balanced`` with a profile, or layers per stage as in ``3,3,4`` or in a list;
            None with a plan, which has a partition.
        profile: Profile of the model, for the partition.
        costs: Costs for a prediction of the run, as `simulate` takes them, except that a DeviceCost is of a whole
            batch; None: no prediction.
        cluster: The machines of the prediction; None: equal devices whose links take no time.
        is_distributed: Whether every rank has a process of its own; if not, all ranks are in this process.
        advance: ``auto``: forwards run further ahead as long as that is faster; with several processes.
        limit_bytes: Bytes that a device may hold while forwards run ahead.
        on_step: Receives each step and its scores soon after the step, and the steps before `resume` at once; not under
            torchrun.
        held_out_every: Steps between two evaluations on held-out samples, with all ranks in this process; None: only
            the final weights are evaluated.
        checkpoint: Folder for regular checkpoints; None: none, or the folder of `resume`.
        every: Steps from one checkpoint to the next; None: 100, or as before. A schedule without a flush is drained and
            refilled at each, so its losses depend on this.
        keep: Number of the newest checkpoints to keep; None: 3, or as before.
        resume: A checkpoint, or a folder whose newest checkpoint continues the run. The results equal an uninterrupted
            run bit by bit, or, if a signal drained the run early, a run with a checkpoint at that step.
        restarts: Most restarts from the newest checkpoint after a rank fails, with processes of its own; the result has
            the failures.
        export: A .safetensors file for the final weights of the whole model; not under torchrun.
        keywords: Settings of the run: the fields of `RunSettings`.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ScheduleError: No such schedule, or lists that cannot have `num_steps` steps.
        ProfileError: The model does not exist, the partition does not fit, or a file is bad.
        ExecutionError: A value is out of range, an op failed in this process, or the checkpoint is damaged, or of
            another run: with the file, and the difference.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
    """
    settings, is_elsewhere = read_settings(keywords), is_distributed is True or is_rank()
    require_flag("is_distributed", is_distributed)
    require_choice("advance", advance, (None, "auto"))
    num_steps = require_at_least("num_steps", num_steps, 1)
    batch_size = require_optional("batch_size", batch_size, 1)
    limit_bytes = require_optional("limit_bytes", limit_bytes, 1, MAX_INT64)
    if limit_bytes is not None and advance is None:
        raise ArgumentError(f"limit_bytes: got {limit_bytes}, expected `advance` with it; leave it out")
    num_ranks, num_microbatches, num_chunks = require_counts(num_ranks, num_microbatches, num_chunks, parameters)
    if on_step is not None:
        require_callable("on_step", on_step)
    if not is_elsewhere:
        _require_effect(keywords)
    partition = partition_text(partition)
    if cluster is not None and costs is None:
        raise ArgumentError("cluster: got it without `costs`, expected both, as nothing is predicted; leave it out")
    plan = given_plan(schedule)
    schedule_spec = _schedule_spec(plan or schedule, num_ranks, num_microbatches, num_chunks, parameters)
    built = read_model_argument(model)
    if plan is not None:
        require_as_planned(
            plan,
            model=built.name,
            compression=settings.compression,
            batch_size=batch_size,
            partition=partition,
            profile=profile,
        )
        batch_size, partition = plan.batch_size, partition_text(plan.partition)
        settings = replace(settings, compression=plan.compression)
    batch_size = 64 if batch_size is None else batch_size
    run = schedule_spec.run(num_steps)
    lists = run.lists(num_steps)
    require_possible(settings)
    require_cut([run], batch_size)
    if schedule_spec.name or lists.origin is not None:
        require_followed({schedule_spec.name or lists.name: lists.traits}, settings)
    require_epsilon([lists.traits], settings)
    if not is_elsewhere:
        require_few(lists)
    held_out_every = require_optional("held_out_every", held_out_every, 1)
    checkpoints = checkpoint_settings(checkpoint, every, keep, resume)
    require_restartable(restarts, checkpoints, is_distributed=is_distributed)
    if held_out_every is not None:
        _require_one_model(
            held_out_every,
            is_here=not is_elsewhere and checkpoints is None,
            averages=lists.traits.averages,
        )
    layers = None if profile is None else read_profile_of(profile, built)
    bounds = cut_of_model(
        built,
        source_of_training(run),
        partition,
        layers,
        run.microbatch_size(batch_size),
        cluster=cluster,
        compression=settings.compression,
    )
    with prints_to_stderr():
        draw_batch(built, 1, settings.seed)  # missing data are found before anything is done
    forecast = None
    if costs is not None:
        stage_costs = costs_of_training(load_costs(costs), run, lists, bounds, batch_size, settings)
        machines = read_cluster_argument(cluster, max(lists.rank_to_device) + 1, f"schedule {lists.name}")
        forecast = _forecast(schedule_spec, bounds, num_steps, stage_costs, machines)
    name = name_for_processes(model) if is_elsewhere else built.name
    job = {"num_steps": num_steps, "batch_size": batch_size, "advance": advance, "limit_bytes": limit_bytes}
    spec = training_spec(schedule_spec, name, bounds, settings, checkpoints=checkpoints, **job)
    trained = trained_by(
        spec,
        built,
        on_step,
        is_distributed=is_distributed,
        held_out_every=held_out_every,
        export=None if export is None else require_path(export, "export"),
        restarts=restarts,
    )
    return TrainingResult(run.name, built.name, num_steps, trained, forecast, run.pipelines)


def _require_effect(keywords: RunKeywords) -> None:
    """Refuse keywords for several processes if there is only one.

    Raises:
        ArgumentError: There is such a keyword.
    """
    for name in _OF_PROCESSES:
        if name in keywords:
            raise ArgumentError(
                f"{name}: got it with all ranks in one process, expected `is_distributed=True` with it; leave it out"
            )


def _require_one_model(held_out_every: int, *, is_here: bool, averages: bool) -> None:
    """Refuse evaluations during training if the model is in several processes, or in several pipelines.

    Raises:
        ArgumentError: Evaluations are not possible.
    """
    if averages or not is_here:
        raise ArgumentError(
            f"held_out_every: got {held_out_every} with processes of their own, checkpoints, or pipelines that are "
            "averaged, expected one model in this process; leave it out"
        )


def _forecast(
    schedule_spec: ScheduleSpec,
    bounds: tuple[tuple[int, int], ...],
    num_steps: int,
    costs: StageCosts,
    cluster: Cluster,
) -> TrainingForecast:
    """Return the forecast of a run that fits.

    Raises:
        ArgumentError: A device exceeds its memory.
    """
    forecast = forecast_training(schedule_spec, bounds, num_steps, costs, cluster)
    if forecast.over is not None:
        raise ArgumentError(
            f"batch_size: over memory: {readable_reason(str(forecast.over))}; try a smaller batch, more stages, or "
            "recomputation"
        )
    return forecast


def _schedule_spec(
    schedule: TrainableSchedule,
    num_ranks: int | None,
    num_microbatches: int | None,
    num_chunks: int | None,
    parameters: Mapping[str, ParameterValue] | None,
) -> ScheduleSpec:
    """Return the specification of the lists of a training run."""
    named = named_schedule(schedule)
    if named is not None:
        entry = entry_of(named)
        if num_ranks is None:
            raise ArgumentError(f"num_ranks: got none with schedule {entry.name}, expected it; try num_ranks=4")
        values = {parameter.name: parameter.default for parameter in entry.parameters} | dict(parameters or {})
        pipelines = values.get("pipelines")
        if num_microbatches is None:
            num_microbatches = num_ranks * (pipelines if isinstance(pipelines, int) else 1)
        if entry.is_own:
            return _of_lists(build_entry(entry, num_ranks, num_microbatches, num_chunks, **(parameters or {})))
        return ScheduleSpec(
            name=entry.name,
            num_ranks=num_ranks,
            num_microbatches=num_microbatches,
            num_chunks=num_chunks,
            parameters=dict(parameters or {}),
        )
    require_no_counts(
        num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, parameters=parameters or None
    )
    match schedule:
        case ScheduleSpec():
            return schedule
        case Plan():
            return schedule.schedule_spec
        case Schedule():
            return _of_lists(schedule)
        case str() | Path():
            return _of_lists(read_schedule(Path(schedule)))
        case _:
            raise ArgumentError(
                f"schedule: got {shown(schedule)}, expected a name, lists, a plan or a file; try '1f1b'"
            )


def _of_lists(lists: Schedule) -> ScheduleSpec:
    require_runnable(lists)
    return ScheduleSpec(lists=to_json(lists))
