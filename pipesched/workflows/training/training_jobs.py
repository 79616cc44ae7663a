"""A training run as a job: its costs, its checks, and its execution."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.executor import RunSettings
from pipesched.profiles import element_bytes
from pipesched.profiles.costs import Compression, DeviceCost, LayerCosts, Profile, StageCosts, costs_of_stages
from pipesched.profiles.models import Model
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import ScheduleSpec, TrainingRun
from pipesched.workflows import ArgumentError, is_rank
from pipesched.workflows.arguments import AnyCosts

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec
    from pipesched.executor.runs import OnRestart
    from pipesched.executor.training import OnStep, Trained

MAX_LOCAL_RANKS = 1024
"""Most ranks in one process; more take minutes to build."""


def training_spec(
    schedule_spec: ScheduleSpec, model: str, bounds: tuple[tuple[int, int], ...], settings: RunSettings, **job: Any
) -> RunSpec:
    """Return a run that trains; `job` are fields of `Train`.

    Raises:
        ExecutionError: A value is out of range.
    """
    from pipesched.executor.launch import RunSpec, Train

    return RunSpec(job=Train(schedule_spec=schedule_spec, **job), model=model, bounds=bounds, **settings.values())


def trained_by(
    spec: RunSpec,
    model: Model,
    on_step: OnStep | None = None,
    *,
    is_distributed: bool = False,
    held_out_every: int | None = None,
    export: Path | None = None,
    restarts: int = 0,
    on_restart: OnRestart | None = None,
) -> Trained:
    """Train: as this process' rank under torchrun, with processes of our own, or with all ranks in this process.

    A run with checkpoints that receives a stop signal ends after a checkpoint.

    Raises:
        ArgumentError: An option for several processes is used with one.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch.
    """
    from pipesched.executor.launch import Train, pause_requests
    from pipesched.executor.runs import RankListener, launch_training, run_rank, train_locally, training_of
    from pipesched.executor.training import Trained

    assert isinstance(spec.job, Train), "its job trains"
    has_checkpoints = spec.job.checkpoints is not None
    if is_rank():
        if export is not None:
            raise ArgumentError(
                f"export: got {export} under torchrun, expected none, as each process has its own stages; try `save`"
            )
        signals = (signal.SIGUSR1,)  # SIGTERM is how torchrun ends all ranks
        with pause_requests(has_checkpoints=has_checkpoints, signals=signals) as is_asked:
            trained = run_rank(spec, RankListener(is_asked=is_asked), is_shared=True, model=model)
        assert isinstance(trained, Trained), "its job trains"
        return trained
    if is_distributed:
        with pause_requests(has_checkpoints=has_checkpoints) as is_asked:
            return launch_training(
                spec,
                on_step,
                is_asked=is_asked,
                export=export,
                restarts=restarts,
                on_restart=on_restart or (lambda error, steps: None),  # noqa: ARG005 -- no listener
            )
    if spec.job.advance is not None:
        raise ArgumentError(
            f"advance: got {spec.job.advance}, expected `is_distributed` with it: in one process ranks take turns, and "
            "no order is faster; add it"
        )
    import torch

    from pipesched.profiles.measuring import computing

    training = training_of(spec, torch.device(spec.device), model)
    lists = training.run.lists(spec.job.num_steps)
    with computing(spec.threads, [training.device]), pause_requests(has_checkpoints=has_checkpoints) as is_asked:
        return train_locally(lists, training, on_step, held_out_every, is_asked=is_asked, export=export)


def costs_of_training(
    costs: AnyCosts,
    run: TrainingRun,
    lists: Schedule,
    bounds: tuple[tuple[int, int], ...],
    batch_size: int,
    settings: RunSettings,
) -> StageCosts:
    """Return the costs of a micro-batch on each stage.

    Args:
        costs: Costs of the layers, of a device with a whole batch, or of a micro-batch on each layer or stage.
        run: Gives the number of micro-batches of a step.
        lists: Gives the number of stages.
        bounds: Half-open range of layers of every stage.
        batch_size: Samples of a step, of each pipeline.
        settings: Gives the compression of messages.

    Raises:
        ProfileError: The profile does not cover these micro-batches.
    """
    if isinstance(costs, Profile):
        stage_costs = costs_of_stages(costs, bounds, run.microbatch_size(batch_size), lists.ranks_per_device)
    elif isinstance(costs, DeviceCost):
        stage_costs = costs.stage_costs(lists).of_share(run.pipelines / run.microbatches_per_step)
    elif isinstance(costs, LayerCosts):
        stage_costs = costs.stage_costs(bounds)
    else:
        stage_costs = costs if isinstance(costs, StageCosts) else costs.stage_costs(lists)
    if settings.compression is None:
        return stage_costs
    return replace(stage_costs, compression=Compression(element_bytes(settings.dtype)))


def require_cut(runs: Sequence[TrainingRun], batch_size: int) -> None:
    """Refuse a batch that a run cannot cut into equal micro-batches.

    Raises:
        ArgumentError: There is such a run.
    """
    for run in runs:
        count = run.microbatches_per_step // run.pipelines
        if batch_size % count:
            near = batch_size - batch_size % count or count
            raise ArgumentError(
                f"batch_size: got {batch_size} samples for the {count} micro-batches of a step of "
                f"{run.name}, expected a multiple; try {near}"
            )


def require_few(lists: Schedule) -> None:
    """Refuse more ranks than one process can build in about a minute.

    Raises:
        ArgumentError: There are more.
    """
    if lists.num_ranks > MAX_LOCAL_RANKS:
        raise ArgumentError(
            f"schedule {lists.name}: got {lists.num_ranks} ranks in one process, expected at most {MAX_LOCAL_RANKS}; "
            "try fewer ranks or copies, or torchrun"
        )
