"""Train one rank of several processes; a run may search for its advance.

Such a run trains in phases whose forwards run further and further ahead, until that is no faster (`advance_policy`):

    lists     0 ahead        1 ahead        2 ahead        1 ahead
    steps     0 .. 5         6 .. 11        12 .. 17       18 .. the last
              all ranks meet |              |              |

Each phase is a part of the run. After it the ranks exchange the seconds of a batch and their peak memory, and make the
same decision. Weights, optimizers, references and the order of samples continue unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from pipesched.executor import writing
from pipesched.executor.core import Batch, HostClock, ModuleStage, Recorder, Stage, lists_of, make_clock, make_meter
from pipesched.executor.launch import LeaveRequest, RankContext, RunSpec, group_beside
from pipesched.executor.runs.rank_job import RankJob, RankListener
from pipesched.executor.runs.training_job import TrainingDriver, TrainingJob
from pipesched.executor.runs.training_parts import TrainingPart, TrainingParts
from pipesched.executor.runs.training_setup import TrainingSetup, training_of
from pipesched.executor.training import BATCHES, AdvancePolicy, LossHistory, Trained
from pipesched.executor.transport import BoundaryShape, all_gather, gather_texts
from pipesched.profiles.models import Model
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op, Step


@final
class RankTraining(RankJob[Trained]):
    """Trains for some steps.

    Raises:
        ScheduleError: The specification makes no lists of that number of steps.
    """

    def __init__(self, spec: RunSpec, listener: RankListener, model: Model | None = None) -> None:
        self._parts = TrainingParts(spec)
        self._parts.gate = listener.gate
        super().__init__(spec, self._parts.lists, listener, model)
        shares_scores = self._parts.has_checkpoints or listener.on_scores is None
        self._history = LossHistory(self._parts.run.microbatches_per_step)
        self._job = TrainingJob(self._parts, self._history, listener.on_scores, shares_scores=shares_scores)
        self._is_paused = False

    def build(self, context: RankContext) -> tuple[Mapping[int, Stage], Batch]:
        self._training = training_of(self.spec, self.model)
        self._stages = stages = self._training.stages(self.lists, context.rank, context.device, self._job.reader.listen)
        self._parts.load(context.rank, stages)
        return stages, self._training.batch(self.lists, context.device)

    def work(
        self,
        context: RankContext,
        stages: Mapping[int, Stage],  # noqa: ARG002 -- as built
        batch: Batch,  # noqa: ARG002 -- each part has its own
        shapes: Mapping[int, BoundaryShape],
    ) -> None:
        driver = _RankDriver(self._training, self._parts, context, self._stages, shapes, self.listener)
        self._is_paused = self._job.run(driver, self.listener.is_asked)

    @property
    def leave_request(self) -> LeaveRequest | None:
        return self._parts.leave_request()

    def ops_of(self, rank: int) -> Iterable[Op]:
        return self._parts.ops_of(rank)

    def gather(self, context: RankContext) -> Trained | None:
        if not context.is_first:
            return None
        policy = self._parts.policy
        ahead = None if policy is None else policy.advance_trials
        return replace(self._history.end(), ahead=ahead, is_paused=self._is_paused)


@final
class _RankDriver(TrainingDriver):
    """Runs the rank of this process."""

    def __init__(
        self,
        training: TrainingSetup,
        parts: TrainingParts,
        context: RankContext,
        stages: Mapping[int, ModuleStage],
        shapes: Mapping[int, BoundaryShape],
        listener: RankListener,
    ) -> None:
        self._training, self._parts, self._context = training, parts, context
        self._shapes, self._listener = shapes, listener
        self.stages, self.is_first = {context.rank: stages}, context.is_first
        # all ranks meet here with their state loaded: `TrainingParts.begin` may remove files of later steps after it
        self._beside = group_beside() if parts.has_checkpoints else None
        self._num_ops = 0
        is_measured = parts.policy is not None
        self._clock = make_clock(context.device) if is_measured else HostClock()
        self._meter = make_meter(context.device) if is_measured else None

    @property
    def _trial(self) -> AdvancePolicy | None:
        """The policy that judges the present phase, or None if the run has the final advance."""
        policy = self._parts.policy
        return None if policy is None or policy.is_settled else policy

    def use(self, lists: Schedule) -> None:
        context, compression = self._context, self._training.spec.compression
        is_trial = self._trial is not None
        self._recorder = Recorder(self._clock, self._meter if is_trial else None, keeps=is_trial)
        stages = self.stages[context.rank]
        rank = context.join(lists, stages, self._shapes, self._recorder, self._at, compression)
        self._rank = replace(rank, named=self._named)

    def _named(self, op: Op) -> Op:
        return self._part.named(op)

    def _at(self, index: int, op: Op) -> None:
        self._listener.at(self._num_ops + index, self._part.named(op))

    def run(self, part: TrainingPart) -> None:
        self._part, context, policy = part, self._context, self._parts.policy
        if policy is not None:
            self._parts.phases.append(part)
            self._listener.on_phase(part.steps - part.begun, policy.advance)
        context.run(self._rank, self._training.batch(part.lists, context.device, part.first_microbatch))
        self._num_ops += len(self._recorder)
        if self._trial is not None and part.steps - part.begun == BATCHES:
            self._trial.judge(*_measured(part.lists, context, self._recorder))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return all_gather(tensor)

    def gather_texts_beside(self, text: str) -> list[str]:
        return gather_texts(text, self._beside)

    def writing(self) -> AbstractContextManager[None]:
        return writing(self._context.rank)


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
