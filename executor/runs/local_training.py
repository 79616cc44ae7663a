"""Train all ranks in this process: the op lists of many steps on real samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from pipesched.executor.core import (
    Batch,
    ModuleStage,
    OnLoss,
    Rank,
    Stage,
    build_stages,
    check_finite,
    check_fits,
    count_from,
    follow,
    lists_of,
)
from pipesched.executor.launch import LocalGate, RunSpec, Train
from pipesched.executor.runs.local_runner import devices_of, local_ranks, make_streams, run_local, synchronize
from pipesched.executor.runs.training_parts import TrainingParts
from pipesched.executor.training import (
    BackgroundWriter,
    LossHistory,
    OnStep,
    RunDiverged,
    ScoreReader,
    Scores,
    ScoreTable,
    StageStates,
    Trained,
    export_weights,
    make_feeds,
    score_model,
)
from pipesched.executor.transport import LocalTransport
from pipesched.profiles.models import Model, draw_held_out, kept_random_state, kept_state, resolve_model, torch_dtype
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import TrainingRun


class HeldOutLooks:
    """The held-out scores of the model after given numbers of steps.

    Without a flush, stages reach a number of Steps at different times. Each stage is copied when it reaches the
    number, and the copies are scored together.

    Args:
        every: Steps between two scores; None for no scores.
        num_stages: Number of stages of the model.
        judge: Returns the scores of the model made of these stages, or None without held-out samples.
    """

    def __init__(
        self, every: int | None, num_stages: int, judge: Callable[[Iterable[nn.Module]], Scores | None]
    ) -> None:
        self.scores: dict[int, Scores] = {}
        self._every, self._num_stages, self._judge = every, num_stages, judge
        self._copies: dict[int, dict[int, nn.Module]] = {}

    def look(self, stage: int, num_steps: int, module: nn.Module) -> None:
        """Record that a stage has stepped; score all stages once each has taken `num_steps`."""
        if self._every is None or num_steps % self._every or num_steps in self.scores:
            return
        copies = self._copies.setdefault(num_steps, {})
        copies[stage] = deepcopy(module)
        if len(copies) < self._num_stages:
            return
        del self._copies[num_steps]
        scores = self._judge(copies[index] for index in range(self._num_stages))
        if scores is not None:
            self.scores[num_steps] = scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """The setup of a training run: its specification, lists, model and device.

    Attributes:
        spec: Specification of the run, whose job trains.
        run: The training run of the job's specification.
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
        """Return a function that builds the stages of a rank; the last stage calls `on_loss` at every forward.

        Args:
            lists: Lists of all steps.
            on_loss: Called with micro-batch, output, target and loss.
            on_step: Called with stage and version after each Step.

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
            device=self.device,
            first=first,
        )
        return Batch(inputs, targets)

    def parts(self) -> TrainingParts:
        """Return the parts of the run, with its checkpoints if it has any.

        Raises:
            ExecutionError: The checkpoint to resume from is damaged, or of another run.
        """
        return TrainingParts(self.spec, self.run)

    def judge(self, stages: Iterable[nn.Module]) -> Scores | None:
        """Return the scores of the whole model on held-out samples, or None if the model has no held-out samples."""
        samples = draw_held_out(self.model, dtype=self.dtype, device=self.device)
        if samples is None:
            return None
        whole = _Whole(*stages)
        synchronize({parameter.device for parameter in whole.parameters()})  # stages come from several streams
        with kept_state(whole):
            return score_model(whole.eval(), self.model.loss, samples, self.batch_size)


class _Whole(nn.Sequential):
    """All stages in a row, each on its own device."""

    def forward(self, x: Tensor) -> Tensor:
        device = x.device
        for stage in self:
            own = next(stage.parameters(), x).device
            x = stage(x.to(own))
        return x.to(device)


def training_of(spec: RunSpec, device: torch.device, model: Model | None = None) -> TrainingSetup:
    """Return the setup of a training run on `device`.

    Args:
        spec: Specification of the run, whose job trains.
        device: Device of the stages built here.
        model: The model of the run (default: looked up by name).

    Raises:
        ScheduleError: The specification makes no lists of that number of steps.
        ProfileError: There is no such model.
    """
    assert isinstance(spec.job, Train), "of this kind"
    run = spec.job.run
    return TrainingSetup(spec=spec, run=run, model=model or resolve_model(spec.model or ""), device=device)


@kept_random_state()
def train_locally(
    training: TrainingSetup,
    on_step: OnStep | None = None,
    held_out_every: int | None = None,
    *,
    is_asked: Callable[[], bool] = lambda: False,
    export: Path | None = None,
) -> Trained:
    """Train with all ranks in this process, on a CPU or each on a stream of its GPU.

    Args:
        training: The setup of the training run.
        on_step: Called after each step.
        held_out_every: Steps between two scores on held-out samples; None to score only the end.
        is_asked: Returns whether a run with checkpoints is to end after its next one.
        export: File for the final weights of the whole model, or None.

    Raises:
        ExecutionError: The samples cannot be cut, an op failed (with rank, op and micro-batch), or a file of a
            checkpoint cannot be written or read.
        ProfileError: A layer cannot be built, or there are no samples.
    """
    spec, parts = training.spec, training.parts()
    lists, devices = parts.lists, devices_of(parts.lists.rank_to_device, spec.device)
    history = LossHistory(training.run.microbatches_per_step, on_step, is_finite_checked=spec.is_finite_checked)
    reader = ScoreReader(history.add)
    looks = HeldOutLooks(held_out_every, lists.num_stages, training.judge)
    history.restore(parts.scores)

    def build(rank: int) -> dict[int, Stage]:
        def on_stage_step(stage: int, version: int) -> None:
            stepped = stages[stage]
            assert isinstance(stepped, ModuleStage), "as it is built here"
            looks.look(stage, version, stepped.module)

        there = replace(training, device=devices[rank])
        stages = there.stages(lists, reader.listen, on_stage_step)(rank)
        parts.load(rank, stages)
        return stages

    transport = partial(LocalTransport, compression=spec.compression)
    ranks = local_ranks(lists, build, spec.averaging, transport, streams=make_streams(devices))
    if spec.is_finite_checked:
        ranks = tuple(replace(rank, probe=check_finite) for rank in ranks)
    try:
        if _run_parts(parts, ranks, training, devices, history, reader, is_asked):
            return replace(history.end(), is_paused=True)
    except RunDiverged:
        return replace(history.end(), looks=looks.scores)
    stages = _final_stages(ranks)
    if export is not None:
        export_weights(export, stages, training.spec.bounds)
    return replace(history.end(training.judge(stages)), looks=looks.scores)


def _batches(
    training: TrainingSetup, devices: Sequence[torch.device], lists: Schedule, first: int = 0
) -> dict[int, Batch]:
    """Return the samples of each rank, from micro-batch `first` of the run on; ranks of a device share them."""
    batches = {device: replace(training, device=device).batch(lists, first) for device in dict.fromkeys(devices)}
    return {rank: batches[device] for rank, device in enumerate(devices)}


def _final_stages(ranks: Sequence[Rank]) -> list[nn.Module]:
    """Return the layers of all stages in order, with the final weights of the first replica.

    All replicas have the same weights. Other state of a layer, such as running means, differs between replicas.
    """
    modules = dict[int, nn.Module]()
    for rank in ranks:
        for index, stage in rank.stages.items():
            assert isinstance(stage, ModuleStage), "what trains has weights"
            stage.settle()
            modules.setdefault(index, stage.module)
    return [modules[index] for index in sorted(modules)]


def _run_parts(
    parts: TrainingParts,
    ranks: Sequence[Rank],
    training: TrainingSetup,
    devices: Sequence[torch.device],
    history: LossHistory,
    reader: ScoreReader,
    is_asked: Callable[[], bool],
) -> bool:
    """Run a training run part by part, and write its checkpoints; return whether it ended early on request."""
    lists = parts.lists
    request = parts.leave_request()
    parts.gate = None if request is None else LocalGate(request, is_asked)
    parts.begin()
    with BackgroundWriter() as writer:
        for part in parts:
            if part.lists is not lists:
                lists, lowered = part.lists, lists_of(part.lists, range(len(ranks)))
                ranks = [replace(rank, ops=lowered[rank.rank]) for rank in ranks]
                for rank in ranks:
                    follow(rank.stages, lists, rank.rank)
            for rank in ranks:
                count_from(rank.stages, part.first_microbatch)
            ranks = [replace(rank, named=part.named) for rank in ranks]
            run_local(ranks, _batches(training, devices, lists, part.first_microbatch))
            writer.check()
            is_last, steps = parts.has_checkpoints and is_asked(), parts.steps_after(part)
            if parts.is_due(steps, is_last=is_last):
                reader.finish()
                writer.wait()  # one copy of the weights at a time
                states = {name: state for rank in ranks for name, state in parts.copy(rank.rank, rank.stages).items()}
                writer.start(partial(_write, parts, steps, states, history.steps.copy()))
            if is_last and len(history.steps) < parts.num_steps:
                return True
    reader.finish()
    return False


def _write(parts: TrainingParts, steps: int, states: StageStates, scores: ScoreTable) -> None:
    parts.finish(parts.write(steps, states), scores)
