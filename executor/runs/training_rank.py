"""One rank of a training run by several processes."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from pipesched.executor import starting
from pipesched.executor.core import HostClock, Recorder, held_stages
from pipesched.executor.launch import RankContext, TrainingSpec, all_gather, connected_as, references
from pipesched.executor.runs.advance_phases import OnPhase, train_in_phases
from pipesched.executor.runs.local_training import TrainingSetup
from pipesched.executor.training import AdvanceTrials, LossHistory, NotComingBack, Scores, Trained, save_stages, score
from pipesched.executor.transport import find_shapes
from pipesched.profiles.models import resolve_model
from pipesched.schedules import LazySchedule
from pipesched.schedules.transforms import TrainingRun

OnScores: TypeAlias = Callable[[int, Scores], None]
"""Told each micro-batch, and its scores, that comes to the last stage of this rank."""


def train_rank(
    job: TrainingSpec,
    on_scores: OnScores | None = None,
    at: Callable[[int], None] = lambda index: None,  # noqa: ARG005 -- nobody need listen
    meet: str = "env://",
    on_phase: OnPhase = lambda found, num_steps: None,  # noqa: ARG005
) -> Trained | None:
    """Run this process' rank of `job`; RANK and WORLD_SIZE are in the environment, as torchrun sets them.

    Under torchrun nobody ends a run that diverges: to stop at the same op, the ranks would have to agree after each
    step, for which they would wait for each other, as a schedule without a flush never does. What is returned says
    where it diverged. (`launch_training` watches the losses from outside, and ends the processes.)

    Args:
        on_scores: Told of the last stage's micro-batches.
        at: Told the position in the lowered list before each op.
        meet: Where the ranks meet: an ``init_method`` of torch.distributed.
        on_phase: Told of each phase, where it is sought how far ahead to run.

    Returns:
        In the first process the course of the run, None elsewhere.

    Raises:
        ExecutionError: The job cannot run, or an op failed: with rank, op and micro-batch.
        ScheduleError: The recipe makes no lists of so many steps.
        ProfileError: There is no such model, or it cannot be built.
    """
    run = job.recipe.run(job.num_steps)
    lists = run.lists(job.num_steps)
    with connected_as(job, lists, meet) as place:
        training = training_of(job, run, place.device)
        scores, ahead = _train(job, training, lists, place, on_scores, at, on_phase)
        everyones = all_gather(_table(scores), place.control)
    return replace(_course(everyones, run.microbatches_per_step), ahead=ahead) if place.is_first else None


def training_of(job: TrainingSpec, run: TrainingRun, device: torch.device) -> TrainingSetup:
    """Return what `job` trains, on `device`; `run` is what its recipe makes."""
    return TrainingSetup(
        model=resolve_model(job.model),
        bounds=job.bounds,
        batch_size=job.batch_size * run.pipelines,
        microbatches_per_step=run.microbatches_per_step,
        optimizer=job.optimizer,
        lr=job.lr,
        seed=job.seed,
        dtype=getattr(torch, job.dtype),
        device=device,
        prediction=job.prediction,
        averaging=job.averaging,
        compression=job.compression,
    )


def _train(
    job: TrainingSpec,
    training: TrainingSetup,
    lists: LazySchedule,
    place: RankContext,
    on_scores: OnScores | None,
    at: Callable[[int], None],
    on_phase: OnPhase,
) -> tuple[dict[int, Scores], AdvanceTrials | None]:
    """Run the rank's list; return the scores of its last stage's micro-batches, and how far ahead it came to run."""
    scores: dict[int, Scores] = {}

    def on_loss(microbatch: int, output: Tensor, target: Tensor, loss: Tensor) -> None:
        scores[microbatch] = score(output, target, loss)
        if on_scores is not None:
            on_scores(microbatch, scores[microbatch])

    with starting(place.rank):
        stages, batch = training.stages(lists, on_loss)(place.rank), training.batch(lists)
    shapes = find_shapes(lists, place.rank, stages, batch.inputs[0], place.control)
    gc.collect()
    gc.freeze()  # what was built stays: the collector need not look at it again in the middle of an op
    with references(lists, place, stages, training.averaging):
        if job.advance is None:
            ahead = None
            place.run(place.join(lists, stages, shapes, Recorder(HostClock(), keeps=False), at, job.compression), batch)
        else:
            ahead = train_in_phases(job, training, place, stages, shapes, on_loss, at, on_phase)
        for stage in stages.values():
            stage.settle()
    if job.save is not None:
        others = {index for rank in range(place.rank) for index in held_stages(lists, rank)}
        save_stages(Path(job.save), {index: stage for index, stage in stages.items() if index not in others})
    return scores, ahead


def _table(scores: dict[int, Scores]) -> Tensor:
    """Return (micro-batch, loss, accuracy) as float64, shape (micro-batches, 3); NaN stands for no accuracy."""
    rows = [(i, each.loss, math.nan if each.accuracy is None else each.accuracy) for i, each in scores.items()]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)


def _course(tables: list[Tensor], microbatches_per_step: int) -> Trained:
    course = LossHistory(microbatches_per_step)
    try:
        for microbatch, loss, accuracy in sorted(torch.cat(tables).tolist()):
            course.add(int(microbatch), Scores(loss, None if math.isnan(accuracy) else accuracy))
    except NotComingBack:
        pass
    return course.end()
