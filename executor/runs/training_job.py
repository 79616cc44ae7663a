"""The job of training: a rank runs its list of all steps once, and keeps the scores of its micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from pipesched.executor.core import Batch, HostClock, Recorder, Stage
from pipesched.executor.launch import RankContext, RunSpec, Train, all_gather
from pipesched.executor.runs.advance_phases import train_in_phases
from pipesched.executor.runs.local_training import training_of
from pipesched.executor.runs.rank_job import RankJob, RankListener
from pipesched.executor.training import AdvanceTrials, LossHistory, RunDiverged, Scores, Trained, score
from pipesched.executor.transport import TensorShape, find_shapes
from pipesched.profiles.models import Model


@final
class TrainingJob(RankJob[Trained]):
    """Trains for some steps.

    Raises:
        ScheduleError: The specification makes no lists of so many steps.
    """

    def __init__(self, spec: RunSpec, listener: RankListener, model: Model | None = None) -> None:
        assert isinstance(spec.job, Train), "of this kind"
        self._model = model
        self._job = spec.job
        self._run = spec.job.run
        self._lists = self._run.lists(spec.job.num_steps)
        super().__init__(spec, self._lists, listener)
        self._scores: dict[int, Scores] = {}
        self._ahead: AdvanceTrials | None = None

    def build(self, context: RankContext) -> tuple[dict[int, Stage], Batch]:
        self._training = training_of(self.spec, context.device, self._model)
        stages = self._training.stages(self._lists, self._on_loss)(context.rank)
        return stages, self._training.batch(self._lists)

    def _on_loss(self, microbatch: int, output: Tensor, target: Tensor, loss: Tensor) -> None:
        self._scores[microbatch] = score(output, target, loss)
        self.listener.on_scores(microbatch, self._scores[microbatch])

    def shapes(self, context: RankContext, stages: Mapping[int, Stage], batch: Batch) -> Mapping[int, TensorShape]:
        return find_shapes(self._lists, context.rank, stages, batch.inputs[0], context.control)

    def work(
        self, context: RankContext, stages: Mapping[int, Stage], batch: Batch, shapes: Mapping[int, TensorShape]
    ) -> None:
        if self._job.advance is not None:
            self._ahead = train_in_phases(self._training, context, stages, shapes, self._on_loss, self.listener)
            return
        recorder = Recorder(HostClock(), keeps=False)
        rank = context.join(self._lists, stages, shapes, recorder, self.listener.at, self.spec.compression)
        context.run(rank, batch)

    def gather(self, context: RankContext) -> Trained | None:
        tables = all_gather(_table(self._scores), context.control)
        if not context.is_first:
            return None
        return replace(_loss_history(tables, self._run.microbatches_per_step), ahead=self._ahead)


def _table(scores: dict[int, Scores]) -> Tensor:
    """Return (micro-batch, loss, accuracy) as float64, shape (micro-batches, 3); NaN stands for no accuracy."""
    rows = [(i, score.loss, math.nan if score.accuracy is None else score.accuracy) for i, score in scores.items()]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)


def _loss_history(tables: list[Tensor], microbatches_per_step: int) -> Trained:
    history = LossHistory(microbatches_per_step)
    try:
        for microbatch, loss, accuracy in sorted(torch.cat(tables).tolist()):
            history.add(int(microbatch), Scores(loss, None if math.isnan(accuracy) else accuracy))
    except RunDiverged:
        pass
    return history.end()
