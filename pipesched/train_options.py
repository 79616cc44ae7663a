"""Options of ``pipesched train``: how to train, whatever the schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.errors import InputError
from pipesched.jobs import Backend
from pipesched.options import Seed
from pipesched.torch_options import DeviceKind, Dtype, Optimizer, Threads, require_gpu
from schedules.prediction import Rule

if TYPE_CHECKING:
    from executor.course import OnStep, Trained
    from executor.training_job import TrainingJob
    from pipesched.plans import Plan
    from profiles.models.model import Model
    from schedules.recipe import Recipe


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train."""

    batch_size: Annotated[int, typer.Option(help="Samples of an optimizer step, of every schedule.", min=1)] = 64
    steps: Annotated[int, typer.Option(help="Optimizer steps.", min=1, max=10**9)] = 100
    optimizer: Optimizer = "adamw"
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0, max=1e6)] = 1e-3
    seed: Seed = 0
    dtype: Dtype = "float32"
    device: DeviceKind = "cpu"
    threads: Threads = 1
    prediction: Annotated[
        Rule | None,
        typer.Option(help="How weights are predicted where a schedule looks ahead; unless given as in its paper."),
    ] = None
    distributed: Annotated[
        bool, typer.Option("--distributed", help="One process per rank, not all ranks in this one.")
    ] = False
    backend: Annotated[Backend, typer.Option(help="Of the messages between processes.")] = "auto"
    timeout: Annotated[
        float, typer.Option(help="How long one message may keep a process waiting [s].", min=0.1, max=1e6)
    ] = 60.0

    def require_possible(self) -> None:
        """Refuse what cannot run on this machine.

        Raises:
            InputError: A backend that is not used, or NCCL between CPUs.
            NotThereError: No GPU.
        """
        if self.backend != "auto" and not self.distributed:
            raise InputError(f"--backend: got {self.backend}, expected --distributed with it; add it")
        if self.backend == "nccl" and self.device == "cpu":
            raise InputError("--backend: got nccl with --device cpu, expected gloo; try --backend auto")
        if self.device == "cuda":
            require_gpu("--device: got cuda", "--device cpu")

    def train(self, plan: Plan, model: Model, on_step: OnStep) -> Trained:
        """Train `model` as planned."""
        import torch

        from executor.training import train

        if self.distributed:
            from executor.training_launcher import launch_training

            return launch_training(self.job(plan.recipe, model, plan.bounds), on_step)
        from executor.training_rank import training_of

        torch.set_num_threads(self.threads)
        job = self.job(plan.recipe, model, plan.bounds)
        training = training_of(job, plan.run.microbatches_per_step, torch.device(self.device))
        return train(plan.run.lists(self.steps), training, on_step)

    def job(self, recipe: Recipe, model: Model, bounds: tuple[tuple[int, int], ...]) -> TrainingJob:
        """Return what is trained, and how, as every process is told."""
        from executor.training_job import TrainingJob

        return TrainingJob(
            recipe=recipe,
            num_steps=self.steps,
            model=model.name,
            bounds=bounds,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            prediction=self.prediction,
            lr=self.lr,
            seed=self.seed,
            dtype=self.dtype,
            device=self.device,
            backend=self.backend,
            threads=self.threads,
            timeout_s=self.timeout,
        )
