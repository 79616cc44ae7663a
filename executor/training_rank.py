"""One rank of a training run by several processes."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from executor.checkpoint import save_stages
from executor.clock import HostClock, Recorder
from executor.course import Course, NotComingBack, Scores, Trained, judge
from executor.distributed import all_gather
from executor.lists import held_stages
from executor.place import Place, connected
from executor.shapes import find_shapes
from executor.training import Training
from executor.training_job import TrainingJob
from profiles.models.resolve import resolve_model
from schedules.lazy import LazySchedule

OnScores: TypeAlias = Callable[[int, Scores], None]
"""Told each micro-batch, and its scores, that comes to the last stage of this rank."""


def train_rank(
    job: TrainingJob,
    on_scores: OnScores | None = None,
    at: Callable[[int], None] = lambda index: None,  # noqa: ARG005 -- nobody need listen
    meet: str = "env://",
) -> Trained | None:
    """Run this process' rank of `job`; RANK and WORLD_SIZE are in the environment, as torchrun sets them.

    Nobody ends a run that diverges; what is returned says where it did.

    Args:
        on_scores: Told of the last stage's micro-batches.
        at: Told the position in the lowered list before each op.
        meet: Where the ranks meet: an ``init_method`` of torch.distributed.

    Returns:
        On rank 0 the course of the run, None elsewhere.

    Raises:
        ExecutionError: The job cannot run, or an op failed: with rank, op and micro-batch.
        ScheduleError: The recipe makes no lists of so many steps.
        ProfileError: There is no such model, or it cannot be built.
    """
    run = job.recipe.run(job.num_steps)
    lists = run.lists(job.num_steps)
    with connected(
        lists,
        device=job.device,
        backend=job.backend,
        threads=job.threads,
        timeout_s=job.timeout_s,
        is_pinned=job.is_pinned,
        meet=meet,
    ) as place:
        training = training_of(job, run.microbatches_per_step, place.device)
        scores = _train(training, lists, place, on_scores, at, job.save)
        everyones = all_gather(_table(scores), place.control)
    return _course(everyones, run.microbatches_per_step) if place.rank == 0 else None


def training_of(job: TrainingJob, microbatches_per_step: int, device: torch.device) -> Training:
    """Return what `job` trains, on `device`."""
    return Training(
        model=resolve_model(job.model),
        bounds=job.bounds,
        batch_size=job.batch_size,
        microbatches_per_step=microbatches_per_step,
        optimizer=job.optimizer,
        lr=job.lr,
        seed=job.seed,
        dtype=getattr(torch, job.dtype),
        device=device,
        prediction=job.prediction,
    )


def _train(
    training: Training,
    lists: LazySchedule,
    place: Place,
    on_scores: OnScores | None,
    at: Callable[[int], None],
    save: str | None,
) -> dict[int, Scores]:
    """Run the rank's list; return the scores of its micro-batches of the last stage."""
    scores: dict[int, Scores] = {}

    def on_loss(microbatch: int, output: Tensor, target: Tensor, loss: Tensor) -> None:
        scores[microbatch] = judge(output, target, loss)
        if on_scores is not None:
            on_scores(microbatch, scores[microbatch])

    stages, batch = training.stages(lists, on_loss)(place.rank), training.batch(lists)
    shapes = find_shapes(lists, place.rank, stages, batch.inputs[0], place.control)
    me = place.join(lists, stages, shapes, Recorder(HostClock(), keeps=False), at)
    gc.collect()
    gc.freeze()  # what was built stays: the collector need not look at it again in the middle of an op
    place.run(me, batch)
    if save is not None:
        others = {index for rank in range(place.rank) for index in held_stages(lists, rank)}
        save_stages(Path(save), {index: stage for index, stage in stages.items() if index not in others})
    return scores


def _table(scores: dict[int, Scores]) -> Tensor:
    """Return (micro-batch, loss, accuracy) as float64, shape (micro-batches, 3); NaN stands for no accuracy."""
    rows = [(i, each.loss, math.nan if each.accuracy is None else each.accuracy) for i, each in scores.items()]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)


def _course(tables: list[Tensor], microbatches_per_step: int) -> Trained:
    course = Course(microbatches_per_step)
    try:
        for microbatch, loss, accuracy in sorted(torch.cat(tables).tolist()):
            course.add(int(microbatch), Scores(loss, None if math.isnan(accuracy) else accuracy))
    except NotComingBack:
        pass
    return course.end()
