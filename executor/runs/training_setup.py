"""The setup of a training run: the stages of its model, their samples, and the judgement of the whole model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipesched.executor.core import Batch, LearningRun, ModuleStage, OnLoss, build_stages, check_fits, require_samples
from pipesched.executor.launch import RunSpec
from pipesched.executor.runs.local_runner import synchronize
from pipesched.executor.training import Scores, make_feeds, score_model
from pipesched.profiles.models import (
    Model,
    Value,
    draw_held_out,
    kept_state,
    mapped,
    resolve_model,
    tensors_of,
    torch_dtype,
)
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import TrainingRun


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The setup of a training run.

    Attributes:
        spec: Specification of the run, whose job trains.
        run: The training run of the job's specification.
        model: The model, whose initial weights depend on the seed alone.
    """

    spec: RunSpec
    run: TrainingRun
    model: Model

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and activations."""
        return torch_dtype(self.spec.dtype)

    @property
    def batch_size(self) -> int:
        """Samples of a step, all pipelines together."""
        return self.spec.training.batch_size * self.run.pipelines

    def stages(
        self,
        lists: Schedule,
        rank: int,
        device: torch.device,
        on_loss: OnLoss,
    ) -> dict[int, ModuleStage]:
        """Return the stages of a rank.

        Args:
            lists: Lists of all steps.
            rank: The rank.
            device: Device of the stages.
            on_loss: Called with micro-batch, output, target and loss after each forward of the last stage.

        Raises:
            ExecutionError: The model is cut into another number of stages than the lists have.
            ProfileError: A layer cannot be built.
        """
        spec, job = self.spec, self.spec.training
        check_fits(lists, len(spec.bounds), f"the partition of {self.model.name}")
        learning = LearningRun(job, job.num_steps, self.run.microbatches_per_step // self.run.pipelines)
        return build_stages(lists, rank, self.model, spec.bounds, spec, device, learning=learning, on_loss=on_loss)

    def batch(self, lists: Schedule, device: torch.device, first: int = 0) -> Batch:
        """Return the samples of `lists`, from micro-batch `first` of the run; they are drawn when they are read.

        Raises:
            ExecutionError: The samples of a step cannot be cut into equal micro-batches.
        """
        inputs, targets = make_feeds(
            self.model,
            self.batch_size,
            self.run.microbatches_per_step,
            lists.num_microbatches,
            seed=self.spec.seed,
            dtype=self.dtype,
            device=device,
            first=first,
        )
        return Batch(inputs, targets)

    def judge(self, stages: Iterable[nn.Module], device: torch.device) -> Scores | None:
        """Return the scores of the whole model on held-out samples, or None if the model has no held-out samples.

        Args:
            stages: The stages, in order.
            device: Device of the samples.
        """
        samples = draw_held_out(self.model, dtype=self.dtype, device=device)
        if samples is None:
            return None
        for part in samples:
            require_samples(self.model, part, len(tensors_of(samples[0])[0]))
        whole = _Whole(*stages)
        synchronize({parameter.device for parameter in whole.parameters()})  # stages come from several streams
        with kept_state(whole):
            return score_model(whole.eval(), self.model.loss, samples, self.batch_size)


class _Whole(nn.Sequential):
    """All stages in a row, each on its own device."""

    def forward(self, value: Value) -> Value:
        first = tensors_of(value)[0]
        for stage in self:
            own = next(stage.parameters(), first).device
            value = stage(_moved(value, own))
        return _moved(value, first.device) if isinstance(value, Tensor | tuple) else value


def _moved(value: Value, device: torch.device) -> Value:
    return mapped(lambda tensor: tensor.to(device), value)


def training_of(spec: RunSpec, model: Model | None = None) -> TrainingSetup:
    """Return the setup of a training run.

    Args:
        spec: Specification of the run, whose job trains.
        model: The model of the run (default: looked up by name).

    Raises:
        ScheduleError: The specification makes no lists of that number of steps.
        ProfileError: There is no such model.
    """
    return TrainingSetup(spec, spec.training.run, model or resolve_model(spec.model or ""))
