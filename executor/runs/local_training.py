"""Train all ranks in this process: on a CPU, or each on a stream of its GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import torch
from torch import nn

from pipesched.executor.core import ModuleStage, check_finite, lists_of
from pipesched.executor.launch import LocalGate
from pipesched.executor.runs.local_runner import devices_of, local_ranks, make_streams, synchronize
from pipesched.executor.runs.stream_watch import StreamWatch
from pipesched.executor.runs.training_job import TrainingDriver, TrainingJob
from pipesched.executor.runs.training_parts import TrainingPart, TrainingParts
from pipesched.executor.runs.training_setup import TrainingSetup
from pipesched.executor.training import (
    LossHistory,
    OnStep,
    Reached,
    RunDiverged,
    Scores,
    TargetReached,
    Trained,
    export_weights,
)
from pipesched.executor.transport import LocalTransport
from pipesched.profiles.measuring import computing
from pipesched.profiles.models import kept_random_state
from pipesched.schedules import Schedule


class HeldOutLooks:
    """The held-out scores of the model after given numbers of steps.

    Without a flush, stages reach a number of Steps at different times. Each stage is copied when it reaches the
    number, and the copies are scored together.

    Args:
        every: Steps between two scores; None for no scores.
        target_accuracy: Accuracy that ends the run; None for no target.
        num_stages: Number of stages of the model.
        judge: Returns the scores of the model made of these stages, or None without held-out samples.

    Attributes:
        scores: The scores, by the number of steps.
        reached: The first evaluation with the target, or None.
        stages: Copies of the stages with the target.
        is_judging: Whether an evaluation runs now.
        spent_s: Time of all evaluations [s].
    """

    def __init__(
        self,
        every: int | None,
        target_accuracy: float | None,
        num_stages: int,
        judge: Callable[[Iterable[nn.Module]], Scores | None],
    ) -> None:
        self.scores: dict[int, Scores] = {}
        self.reached: Reached | None = None
        self.stages: Sequence[nn.Module] = ()
        self._every, self._target, self._num_stages, self._judge = every, target_accuracy, num_stages, judge
        self._copies: dict[int, dict[int, nn.Module]] = {}
        self._began_s = 0.0
        self.is_judging = False
        self.spent_s = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self._began_s = time.perf_counter()

    def look(self, stage: int, module: nn.Module, num_steps: int) -> None:
        """Record that a stage has stepped; score all stages once each has taken `num_steps`.

        Raises:
            TargetReached: The accuracy has reached its target.
        """
        if self._every is None or num_steps % self._every or num_steps in self.scores:
            return
        copies = self._copies.setdefault(num_steps, {})
        copies[stage] = deepcopy(module)
        if len(copies) < self._num_stages:
            return
        del self._copies[num_steps]
        stages = [copies[index] for index in range(self._num_stages)]
        synchronize({parameter.device for module in stages for parameter in module.parameters()})
        looked_s = time.perf_counter()
        self.is_judging = True
        scores = self._judge(stages)
        self.is_judging = False
        if scores is None:
            return
        self.scores[num_steps] = scores
        if self.is_reached(scores, num_steps, looked_s):
            self.stages = stages
            raise TargetReached
        self.spent_s += time.perf_counter() - looked_s

    def is_reached(self, scores: Scores | None, num_steps: int, now_s: float) -> bool:
        """Return whether the scores of weights after `num_steps` steps, known at `now_s`, have the target accuracy."""
        accuracy = None if scores is None else scores.accuracy
        if self._target is None or accuracy is None or accuracy < self._target:
            return False
        self.reached = Reached(num_steps, now_s - self._began_s - self.spent_s)
        return True


@kept_random_state()
def train_locally(
    training: TrainingSetup,
    on_step: OnStep | None = None,
    held_out_every: int | None = None,
    is_asked: Callable[[], bool] = lambda: False,
    export: Path | None = None,
    target_accuracy: float | None = None,
) -> Trained:
    """Train with all ranks in this process, on a CPU or each on a stream of its GPU.

    Args:
        training: The setup of the training run.
        on_step: Called after each step.
        held_out_every: Steps between two scores on held-out samples; None to score only the end.
        is_asked: Returns whether a run with checkpoints is to end after its next one.
        export: File for the final weights of the whole model, or None.
        target_accuracy: Held-out accuracy that ends the run; None for no target.

    Raises:
        ExecutionError: The samples cannot be cut, an op failed (with rank, op and micro-batch), or a file of a
            checkpoint cannot be written or read.
        ProfileError: A layer cannot be built, or there are no samples.
    """
    spec, parts = training.spec, TrainingParts(training.spec)
    history = LossHistory(training.run.microbatches_per_step, on_step, is_finite_checked=spec.is_finite_checked)
    job = TrainingJob(parts, history, history.add)
    judge = partial(training.judge, device=torch.device(spec.device))
    looks = HeldOutLooks(held_out_every, target_accuracy, parts.lists.num_stages, judge)
    request, devices = parts.leave_request(), devices_of(parts.lists.rank_to_device, spec.device)
    parts.gate = None if request is None else LocalGate(request, is_asked)
    with computing(spec.threads, set(devices)):
        driver = _LocalDriver(training, job, devices, looks)
        with driver.watch.watching():
            trained = _trained(driver, job, looks, judge, is_asked, export)
    return replace(trained, launching=driver.watch.launching)


def _trained(
    driver: _LocalDriver,
    job: TrainingJob,
    looks: HeldOutLooks,
    judge: Callable[[Iterable[nn.Module]], Scores | None],
    is_asked: Callable[[], bool],
    export: Path | None,
) -> Trained:
    """Train, and score the final weights."""
    history = job.history
    looks.begin()
    try:
        if job.run(driver, is_asked):
            return replace(history.end(), is_paused=True)
    except RunDiverged:
        return replace(history.end(), looks=looks.scores)
    except TargetReached:
        with suppress(RunDiverged):
            job.reader.finish()
        assert looks.reached is not None, "as the error says"
        history.cut(looks.reached.num_steps)
        stages: Sequence[nn.Module] = looks.stages
        held_out: Scores | None = looks.scores[looks.reached.num_steps]
    else:
        stages, ended_s = driver.final_stages(), time.perf_counter()
        held_out = judge(stages)
        looks.is_reached(held_out, job.parts.num_steps, ended_s)
    if export is not None:
        export_weights(export, driver.training.model, stages, driver.training.spec.bounds)
    return replace(history.end(held_out), looks=looks.scores, reached=looks.reached)


@final
class _LocalDriver(TrainingDriver):
    """Runs all ranks in turns.

    Attributes:
        training: The setup of the training run.
        watch: Watches the streams of GPUs.
    """

    def __init__(
        self, training: TrainingSetup, job: TrainingJob, devices: Sequence[torch.device], looks: HeldOutLooks
    ) -> None:
        lists, spec = job.parts.lists, training.spec
        self.training, self._devices = training, devices
        self.stages = built = dict[int, dict[int, ModuleStage]]()

        def build(rank: int) -> dict[int, ModuleStage]:
            stages = built[rank] = training.stages(lists, rank, self._devices[rank], job.reader.listen)
            for index, stage in stages.items():
                stage.on_step = partial(looks.look, index, stage.module)
            job.parts.load(rank, stages)
            return stages

        transport = partial(LocalTransport, compression=spec.compression)
        streams = make_streams(devices, are_green=spec.has_green_contexts)
        self.watch = StreamWatch(streams, spec.timeout_s, lambda: looks.spent_s, lambda: looks.is_judging)
        ranks = local_ranks(lists, build, spec.averaging, transport, streams=streams)
        self._ranks = [replace(rank, probes=[check_finite] if spec.is_finite_checked else ()) for rank in ranks]

    def use(self, lists: Schedule) -> None:
        lowered = lists_of(lists, range(len(self._ranks)))
        self._ranks = [replace(rank, ops=lowered[rank.rank]) for rank in self._ranks]

    def run(self, part: TrainingPart) -> None:
        batches = {
            device: self.training.batch(part.lists, device, part.first_microbatch)
            for device in dict.fromkeys(self._devices)  # ranks of a device share them
        }
        ranks = [replace(rank, named=part.named) for rank in self._ranks]
        self.watch.run(ranks, {rank: batches[device] for rank, device in enumerate(self._devices)})

    def final_stages(self) -> list[nn.Module]:
        """Return the layers of all stages in order, with the final weights of the first replica.

        All replicas have the same weights. Other state of a layer, such as running means, differs between replicas.
        """
        modules = dict[int, nn.Module]()
        for stages in self.stages.values():
            for index, stage in stages.items():
                stage.settle()
                modules.setdefault(index, stage.module)
        return [modules[index] for index in sorted(modules)]
