"""The job of training: a rank runs its list of all steps once, and keeps the scores of its micro-batches."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import final

import torch
import torch.distributed as dist

from pipesched.executor import ITS_CHECKPOINT, waiting_for, writing
from pipesched.executor.core import Batch, HostClock, Recorder, Stage, count_from, follow
from pipesched.executor.launch import LeaveRequest, RankContext, RunSpec, Train, all_gather, gather_texts, group_beside
from pipesched.executor.runs.advance_phases import train_in_phases
from pipesched.executor.runs.local_training import training_of
from pipesched.executor.runs.rank_job import RankJob, RankListener
from pipesched.executor.runs.training_parts import TrainingParts
from pipesched.executor.training import (
    AdvanceTrials,
    BackgroundWriter,
    FileDigest,
    LossHistory,
    RunDiverged,
    ScoreReader,
    Scores,
    ScoreTable,
    StageStates,
    Trained,
)
from pipesched.executor.transport import TensorShape, find_shapes
from pipesched.profiles.models import Model
from pipesched.schedules.ops import Op


@final
class TrainingJob(RankJob[Trained]):
    """Trains for some steps.

    Raises:
        ScheduleError: The specification makes no lists of that number of steps.
    """

    def __init__(self, spec: RunSpec, listener: RankListener, model: Model | None = None) -> None:
        assert isinstance(spec.job, Train), "of this kind"
        self._model = model
        self._job = spec.job
        self._run = spec.job.run
        self._lists = self._run.lists(spec.job.num_steps)
        super().__init__(spec, self._lists, listener)
        self._scores = array("d")  # micro-batch, loss and accuracy, in turn
        self._reader = ScoreReader(self._on_scores)
        self._ahead: AdvanceTrials | None = None
        self._parts = None if self._job.checkpoints is None else TrainingParts(spec, self._run)
        if self._parts is not None:
            self._parts.gate = listener.gate
        self._history = LossHistory(self._run.microbatches_per_step)
        self._is_paused = False

    def build(self, context: RankContext) -> tuple[dict[int, Stage], Batch]:
        self._training = training_of(self.spec, context.device, self._model)
        stages = self._training.stages(self._lists, self._reader.listen)(context.rank)
        if self._parts is not None:
            self._parts.load(context.rank, stages)
            self._history.restore(self._parts.scores)
        return stages, self._training.batch(self._lists)

    def _on_scores(self, microbatch: int, scores: Scores) -> None:
        if self._parts is not None or not self.listener.keeps_scores:
            self._scores.extend((microbatch, scores.loss, math.nan if scores.accuracy is None else scores.accuracy))
        self.listener.on_scores(microbatch, scores)

    def shapes(self, context: RankContext, stages: Mapping[int, Stage], batch: Batch) -> Mapping[int, TensorShape]:
        sample = batch.inputs[0] if 0 in stages else None
        return find_shapes(self._lists, context.rank, stages, sample)

    def work(
        self, context: RankContext, stages: Mapping[int, Stage], batch: Batch, shapes: Mapping[int, TensorShape]
    ) -> None:
        if self._job.advance is not None:
            self._ahead = train_in_phases(self._training, context, stages, shapes, self.listener)
            return
        if self._parts is not None:
            self._is_paused = self._run_parts(self._parts, context, stages, shapes)
            return
        recorder = Recorder(HostClock(), keeps=False)
        rank = context.join(self._lists, stages, shapes, recorder, self.listener.at, self.spec.compression)
        context.run(rank, batch)

    def _run_parts(
        self, parts: TrainingParts, context: RankContext, stages: Mapping[int, Stage], shapes: Mapping[int, TensorShape]
    ) -> bool:
        """Run part by part, and write checkpoints; return whether the run ended early on the request of a process."""
        lists, num_ops, steps = None, 0, parts.num_steps
        recorder = Recorder(HostClock(), keeps=False)

        def named(op: Op) -> Op:
            return part.named(op)

        def at(index: int, op: Op) -> None:
            self.listener.at(num_ops + index, part.named(op))

        beside = group_beside()
        if context.is_first:  # all ranks have loaded their state: files may be removed now
            parts.begin()
        with BackgroundWriter() as writer:
            for part in parts:
                if part.lists is not lists:
                    lists = part.lists
                    follow(stages, lists, context.rank)
                    rank = context.join(lists, stages, shapes, recorder, at, self.spec.compression)
                    rank = replace(rank, named=named)
                count_from(stages, part.first_microbatch)
                context.run(rank, self._training.batch(lists, part.first_microbatch))
                num_ops, steps = num_ops + len(recorder), parts.steps_after(part)
                writer.check()
                asked = torch.tensor([int(self.listener.is_asked())])
                is_last = bool(torch.cat(all_gather(asked)).any())
                if is_last or parts.is_due(steps):
                    self._take_scores()
                    if self._history.diverged is not None:
                        return False
                    _settle(writer)  # one copy of the weights at a time
                    with writing(context.rank):
                        states = parts.copy(context.rank, stages)
                    writer.start(partial(_write, context, beside, parts, states, self._history.steps.copy()))
                if is_last:
                    break
            _settle(writer)
        return steps < parts.num_steps

    @property
    def leave_request(self) -> LeaveRequest | None:
        return None if self._parts is None else self._parts.leave_request()

    def ops_of(self, rank: int) -> Iterable[Op]:
        return super().ops_of(rank) if self._parts is None else self._parts.ops_of(rank)

    def _take_scores(self) -> None:
        """Move the new scores of all ranks into the history; each process has its own history."""
        self._reader.finish()
        own, self._scores = torch.tensor(self._scores, dtype=torch.float64).reshape(-1, 3), array("d")
        tables = torch.cat(all_gather(own))
        try:
            for microbatch, loss, accuracy in sorted(tables.tolist()):
                self._history.add(int(microbatch), Scores(loss, None if math.isnan(accuracy) else accuracy))
        except RunDiverged:
            pass

    def gather(self, context: RankContext) -> Trained | None:
        if self._history.diverged is None:
            self._take_scores()
        if not context.is_first:
            return None
        return replace(self._history.end(), ahead=self._ahead, is_paused=self._is_paused)


def _settle(writer: BackgroundWriter) -> None:
    """Wait until all ranks have written the last checkpoint, so that no rank waits for another's disk inside an op."""
    with waiting_for("what is written of a checkpoint", ITS_CHECKPOINT):
        writer.wait()
    all_gather(torch.zeros(1))


def _write(
    context: RankContext, beside: dist.ProcessGroup, parts: TrainingParts, states: StageStates, scores: ScoreTable
) -> None:
    """Write the state of the rank after the last step; the first process makes a checkpoint of the files of all."""
    with writing(context.rank):
        files = parts.write(len(scores), states)
        texts = gather_texts(json.dumps({name: asdict(file) for name, file in files.items()}), beside)
        if context.is_first:
            told = {name: FileDigest(**file) for text in texts for name, file in json.loads(text).items()}
            parts.finish(told, scores)
