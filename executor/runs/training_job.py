"""The job of training: a rank runs its list of all steps, part by part, and keeps the scores of its micro-batches.

A run may search for its advance. It then trains in phases whose forwards run further and further ahead, until that is
no faster (`advance_policy`):

    lists     0 ahead        1 ahead        2 ahead        1 ahead
    steps     0 .. 5         6 .. 11        12 .. 17       18 .. the last
              all ranks meet |              |              |

In each phase the ranks run separate lists. In between they exchange the seconds of a batch and their peak memory, and
make the same decision. Weights, optimizers, references and the order of samples continue unchanged.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import final

import torch
import torch.distributed as dist

from pipesched.executor import ITS_CHECKPOINT, waiting_for, writing
from pipesched.executor.core import (
    Batch,
    HostClock,
    Recorder,
    Stage,
    count_from,
    follow,
    lists_of,
    make_clock,
    make_meter,
)
from pipesched.executor.launch import LeaveRequest, RankContext, RunSpec, Train, all_gather, gather_texts, group_beside
from pipesched.executor.runs.local_training import TrainingSetup, training_of
from pipesched.executor.runs.rank_job import RankJob, RankListener
from pipesched.executor.runs.training_parts import TrainingParts
from pipesched.executor.training import (
    BATCHES,
    AdvancePolicy,
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
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op, Step


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
        self._parts = TrainingParts(spec, self._run)
        self._parts.gate = listener.gate
        super().__init__(spec, self._parts.lists, listener)
        self._scores = array("d")  # micro-batch, loss and accuracy, in turn
        self._reader = ScoreReader(self._on_scores)
        self._ahead: AdvanceTrials | None = None
        self._history = LossHistory(self._run.microbatches_per_step)
        self._is_paused = False

    def build(self, context: RankContext) -> tuple[dict[int, Stage], Batch]:
        self._training = training_of(self.spec, context.device, self._model)
        stages = self._training.stages(self.lists, self._reader.listen)(context.rank)
        self._parts.load(context.rank, stages)
        self._history.restore(self._parts.scores)
        return stages, self._training.batch(self.lists)

    def _on_scores(self, microbatch: int, scores: Scores) -> None:
        if self._parts.has_checkpoints or not self.listener.keeps_scores:
            self._scores.extend((microbatch, scores.loss, math.nan if scores.accuracy is None else scores.accuracy))
        self.listener.on_scores(microbatch, scores)

    def shapes(self, context: RankContext, stages: Mapping[int, Stage], batch: Batch) -> Mapping[int, TensorShape]:
        sample = batch.inputs[0] if 0 in stages else None
        return find_shapes(self.lists, context.rank, stages, sample)

    def work(
        self,
        context: RankContext,
        stages: Mapping[int, Stage],
        batch: Batch,  # noqa: ARG002 -- each part has its own
        shapes: Mapping[int, TensorShape],
    ) -> None:
        if self._job.advance is None:
            self._is_paused = self._run_parts(context, stages, shapes)
        else:
            self._ahead = train_in_phases(self._training, context, stages, shapes, self.listener)

    def _run_parts(self, context: RankContext, stages: Mapping[int, Stage], shapes: Mapping[int, TensorShape]) -> bool:
        """Run part by part, and write checkpoints; return whether the run ended early on the request of a process."""
        parts, lists, num_ops, steps = self._parts, None, 0, self._parts.num_steps
        recorder = Recorder(HostClock(), keeps=False)

        def named(op: Op) -> Op:
            return part.named(op)

        def at(index: int, op: Op) -> None:
            self.listener.at(num_ops + index, part.named(op))

        beside = group_beside() if parts.has_checkpoints else None
        if context.is_first:  # all ranks have loaded their state: files may be removed now
            parts.begin()
        with BackgroundWriter() as writer:
            for part in parts:
                if part.lists is not lists:
                    lists = part.lists
                    if lists is not self.lists:
                        follow(stages, lists, context.rank)
                    rank = context.join(lists, stages, shapes, recorder, at, self.spec.compression)
                    rank = replace(rank, named=named)
                count_from(stages, part.first_microbatch)
                context.run(rank, self._training.batch(lists, part.first_microbatch))
                num_ops, steps = num_ops + len(recorder), parts.steps_after(part)
                writer.check()
                asked = torch.tensor([int(parts.has_checkpoints and self.listener.is_asked())])
                is_last = bool(torch.cat(all_gather(asked)).any())
                if parts.is_due(steps, is_last=is_last):
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
        return self._parts.leave_request()

    def ops_of(self, rank: int) -> Iterable[Op]:
        return self._parts.ops_of(rank)

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
    context: RankContext,
    beside: dist.ProcessGroup | None,
    parts: TrainingParts,
    states: StageStates,
    scores: ScoreTable,
) -> None:
    """Write the state of the rank after the last step; the first process makes a checkpoint of the files of all."""
    with writing(context.rank):
        files = parts.write(len(scores), states)
        texts = gather_texts(json.dumps({name: asdict(file) for name, file in files.items()}), beside)
        if context.is_first:
            told = {name: FileDigest(**file) for text in texts for name, file in json.loads(text).items()}
            parts.finish(told, scores)


def lists_ahead(job: Train, advance: int, num_steps: int) -> Schedule:
    """Return the lists of `num_steps` steps of `job`, `advance` ahead."""
    schedule_spec = replace(job.schedule_spec, parameters={**job.schedule_spec.parameters, "advance": advance})
    return schedule_spec.run(num_steps).lists(num_steps)


def train_in_phases(
    training: TrainingSetup,
    context: RankContext,
    stages: Mapping[int, Stage],
    shapes: Mapping[int, TensorShape],
    listener: RankListener,
) -> AdvanceTrials:
    """Run all steps of a training job; return the trials of the advance.

    Args:
        training: The setup of the training run.
        context: Context of this rank.
        stages: Stages of this rank, built for lists of all steps.
        shapes: Shapes of the tensors between stages.
        listener: Called before each op, with the number of earlier ops in all phases, and at the start of each phase.
    """
    job = training.spec.job
    assert isinstance(job, Train), "of this kind"
    policy = AdvancePolicy(job.schedule_spec.num_microbatches // training.run.pipelines - 1, job.limit_bytes)
    clock, meter = make_clock(context.device), make_meter(context.device)
    num_done = num_ops = 0
    while num_done < job.num_steps:
        left = job.num_steps - num_done
        num_steps = left if policy.is_settled else min(BATCHES, left)
        listener.on_phase(policy.advance_trials, num_steps)
        lists = lists_ahead(job, policy.advance, num_steps)
        first = num_done * training.run.microbatches_per_step
        follow(stages, lists, context.rank)
        count_from(stages, first)
        recorder = Recorder(clock, None if policy.is_settled else meter, keeps=not policy.is_settled)
        me = context.join(lists, stages, shapes, recorder, _after(num_ops, listener.at), training.spec.compression)
        context.run(me, training.batch(lists, first))
        if not policy.is_settled and num_steps == BATCHES:
            policy.judge(*_measured(lists, context, recorder))
        num_done += num_steps
        num_ops += len(recorder)
    return policy.advance_trials


def _after(count: int, at: Callable[[int, Op], None]) -> Callable[[int, Op], None]:
    return lambda index, op: at(count + index, op)


def _measured(lists: Schedule, context: RankContext, recorder: Recorder) -> tuple[list[float], int | None]:
    """Return the seconds of all batches but the first, and the peak bytes of the fullest device; equal on all ranks.

    A batch lasts from one Step to the next, on the slowest rank, so that clocks need not agree.
    """
    ends_s = list(_batch_ends_s(lists_of(lists, {context.rank})[context.rank], recorder))
    mine_s = torch.tensor(ends_s, dtype=torch.float64).diff()
    batches_s = torch.stack(all_gather(mine_s)).amax(0)
    peak = torch.tensor([max(recorder.most_bytes(), default=-1)])
    peaks = [int(peak_bytes) for peak_bytes in all_gather(peak)]
    if min(peaks) < 0:
        return batches_s.tolist(), None
    held = dict.fromkeys(lists.rank_to_device, 0)
    for device, num_bytes in zip(lists.rank_to_device, peaks, strict=True):
        held[device] += num_bytes
    return batches_s.tolist(), max(held.values())


def _batch_ends_s(ops: Iterable[Op], recorder: Recorder) -> Iterator[float]:
    """Yield when the last Step of each batch was over, on this rank [s]."""
    ends_s = [end / 1e9 for op, (_, _, end) in zip(ops, recorder.times_ns(), strict=True) if isinstance(op, Step)]
    per_batch = len(ends_s) // BATCHES
    yield from ends_s[per_batch - 1 :: per_batch]
