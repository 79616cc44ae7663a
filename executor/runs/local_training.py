"""Train all ranks in this process: the op lists of many steps on real samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from pipesched.executor.core import Batch, ModuleStage, OnLoss, Stage, build_stages, check_fits
from pipesched.executor.launch import RunSpec, Train
from pipesched.executor.runs.held_out_looks import HeldOutLooks
from pipesched.executor.runs.local_runner import local_ranks, run_local
from pipesched.executor.training import LossHistory, OnStep, RunDiverged, Scores, Trained, make_feeds, score_model
from pipesched.executor.transport import LocalTransport
from pipesched.profiles.models import Model, draw_held_out, resolve_model, torch_dtype
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """The setup of a training run: its specification, lists, model and device.

    Attributes:
        spec: Specification of the run, whose job trains.
        run: What the job's specification makes.
        model: The model, whose initial weights depend on the seed alone.
        device: Device of the stages built here.
    """

    spec: RunSpec
    run: TrainingRun
    model: Model
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and activations."""
        return torch_dtype(self.spec.dtype)

    @property
    def batch_size(self) -> int:
        """Samples of a step, all pipelines together."""
        assert isinstance(self.spec.job, Train), "as the class says"
        return self.spec.job.batch_size * self.run.pipelines

    def stages(
        self, lists: Schedule, on_loss: OnLoss, on_step: Callable[[int, int], None] | None = None
    ) -> Callable[[int], dict[int, Stage]]:
        """Return what builds the stages of a rank; those of the last one tell `on_loss` of every forward.

        Args:
            lists: Lists of all steps.
            on_loss: Told micro-batch, output, target and loss.
            on_step: Told stage and version after each Step.

        Raises:
            ExecutionError: The model is cut into another number of stages than the lists have.
        """
        check_fits(lists, len(self.spec.bounds), f"the partition of {self.model.name}")

        def build(rank: int) -> dict[int, Stage]:
            return build_stages(
                lists,
                rank,
                self.model,
                self.spec.bounds,
                optimizer=self.spec.optimizer,
                lr=self.spec.lr,
                seed=self.spec.seed,
                dtype=self.dtype,
                device=self.device,
                prediction=self.spec.prediction,
                on_loss=on_loss,
                on_step=on_step,
            )

        return build

    def batch(self, lists: Schedule, first: int = 0) -> Batch:
        """Return the samples of `lists`, from micro-batch `first` of the run on; they are drawn as they are read.

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
            device=self.device,
            first=first,
        )
        return Batch(inputs, targets)

    def judge(self, stages: Iterable[nn.Module]) -> Scores | None:
        """Return the scores of all stages in a row on the samples kept from training; None if there are none."""
        samples = draw_held_out(self.model, dtype=self.dtype, device=self.device)
        if samples is None:
            return None
        return score_model(nn.Sequential(*stages).eval(), self.model.loss, samples, self.batch_size)


def training_of(spec: RunSpec, device: torch.device, model: Model | None = None) -> TrainingSetup:
    """Return what a run trains, on `device`.

    Args:
        spec: Specification of the run, whose job trains.
        device: Device of the stages built here.
        model: The model that the run names; None: the name is looked up.

    Raises:
        ScheduleError: The specification makes no lists of so many steps.
        ProfileError: There is no such model.
    """
    assert isinstance(spec.job, Train), "of this kind"
    run = spec.job.run
    return TrainingSetup(spec=spec, run=run, model=model or resolve_model(spec.model or ""), device=device)


def train_locally(
    lists: Schedule, training: TrainingSetup, on_step: OnStep | None = None, held_out_every: int | None = None
) -> Trained:
    """Run `lists`, all ranks in this process on one device.

    Args:
        lists: Lists of all steps, with or without communication.
        training: What they train.
        on_step: Told of each step.
        held_out_every: Steps from one look at the held-out samples to the next; None: only the end is judged.

    Raises:
        ExecutionError: The samples cannot be cut, or an op failed: with rank, op and micro-batch.
        ProfileError: A layer cannot be built, or there are no samples.
    """
    history = LossHistory(training.run.microbatches_per_step, on_step)
    looks = HeldOutLooks(held_out_every, lists.num_stages, training.judge)

    def build(rank: int) -> dict[int, Stage]:
        def on_stage_step(stage: int, version: int) -> None:
            stepped = stages[stage]
            assert isinstance(stepped, ModuleStage), "as it is built here"
            looks.look(stage, version, stepped.module)

        stages = training.stages(lists, history.listen, on_stage_step)(rank)
        return stages

    transport = partial(LocalTransport, compression=training.spec.compression)
    ranks = local_ranks(lists, build, training.spec.averaging, transport)
    try:
        run_local(ranks, training.batch(lists))
    except RunDiverged:
        return replace(history.end(), looks=looks.scores)
    for rank in ranks:
        for stage in rank.stages.values():
            stage.settle()
    modules = {
        index: stage.module for rank in ranks for index, stage in rank.stages.items() if isinstance(stage, ModuleStage)
    }
    trained = history.end(training.judge(modules[index] for index in range(lists.num_stages)))
    return replace(trained, looks=looks.scores)
