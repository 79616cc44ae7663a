"""From options to the job of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pipesched.errors import InputError
from pipesched.profile import Dtype, Optimizer, Threads, TorchDevice

if TYPE_CHECKING:
    from executor.job import Backend, DeviceKind, How, Job
    from profiles.stage_costs import StageCosts
    from schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run, whatever the schedule."""

    optimizer: Optimizer = "adamw"
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0)] = 1e-3
    dtype: Dtype = "float32"
    device: TorchDevice = "cpu"
    backend: Annotated[str, typer.Option(help="gloo, nccl, or auto: nccl where every rank has a GPU.")] = "auto"
    threads: Threads = 1
    iterations: Annotated[int, typer.Option(help="Measured runs of the list; the median one counts.", min=1)] = 5
    warmup: Annotated[int, typer.Option(help="Runs before them.", min=1)] = 1
    timeout: Annotated[float, typer.Option(help="How long one message may keep a rank waiting [s].", min=0.1)] = 60.0
    no_check: Annotated[bool, typer.Option("--no-check", help="Run a list even though the checker refuses it.")] = False
    seed: Annotated[int, typer.Option(help="Of weights and data.", min=0)] = 0

    def job(
        self,
        schedule: Schedule,
        *,
        model: str | None = None,
        bounds: tuple[tuple[int, int], ...] = (),
        microbatch_size: int = 1,
        emulate: StageCosts | None = None,
        how: str = "sleep",
    ) -> Job:
        """Return the job of running `schedule` with a model, or emulated.

        Raises:
            InputError: An option has a value that it cannot have.
        """
        from executor.job import Backend, DeviceKind, How, Job
        from profiles.models.optimizers import OPTIMIZERS
        from schedules.formats.schedule_json import to_json

        for option, value, choices in (
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--dtype", self.dtype, ("float32", "float64", "bfloat16", "float16")),
            ("--device", self.device, ("cpu", "cuda")),
            ("--backend", self.backend, ("auto", "gloo", "nccl")),
            ("--how", how, ("sleep", "busy")),
        ):
            if value not in choices:
                raise InputError(f"{option}: got {value!r}, expected one of {', '.join(choices)}")
        return Job(
            schedule=to_json(schedule),
            model=model,
            bounds=bounds,
            microbatch_size=microbatch_size,
            emulate=emulate,
            how=cast("How", how),
            optimizer=self.optimizer,
            lr=self.lr,
            seed=self.seed,
            dtype=self.dtype,
            device=cast("DeviceKind", self.device),
            backend=cast("Backend", self.backend),
            threads=self.threads,
            iterations=self.iterations,
            warmup=self.warmup,
            timeout_s=self.timeout,
            is_checked=not self.no_check,
        )
