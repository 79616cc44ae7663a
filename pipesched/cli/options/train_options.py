"""Options of ``pipesched train``: how to train, whatever the schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.schedule_options import Seed
from pipesched.cli.options.torch_options import (
    AveragingOption,
    CompressionOption,
    DeviceOption,
    DtypeOption,
    Optimizer,
    Threads,
    require_gpu,
)
from pipesched.executor import Backend
from pipesched.schedules import LONGEST_S, PredictionRule

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec
    from pipesched.profiles.models import Model
    from pipesched.schedules.transforms import ScheduleSpec
    from pipesched.workflows import RunKeywords


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train."""

    batch_size: Annotated[
        int,
        typer.Option(
            help="Samples of an optimizer step, of every schedule; of each pipeline of avgpipe.", min=1, max=2**31 - 1
        ),
    ] = 64
    steps: Annotated[int, typer.Option(help="Optimizer steps.", min=1, max=10**9)] = 100
    optimizer: Optimizer = "adamw"
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0, max=1e6)] = 1e-3
    seed: Seed = 0
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    threads: Threads = 1
    prediction: Annotated[
        PredictionRule | None,
        typer.Option(help="How weights are predicted where a schedule looks ahead; unless given as in its paper."),
    ] = None
    averaging: AveragingOption = "asynchronous"
    advance: Annotated[
        Literal["auto"] | None,
        typer.Option(help="How far ahead forwards run: further while a batch gets faster and --memory-limit allows."),
    ] = None
    distributed: Annotated[
        bool, typer.Option("--distributed", help="One process per rank, not all ranks in this one.")
    ] = False
    backend: Annotated[Backend, typer.Option(help="Of the messages between processes.")] = "auto"
    compression: CompressionOption = None
    timeout: Annotated[
        float, typer.Option(help="How long one message may keep a process waiting [s].", min=0.1, max=LONGEST_S)
    ] = 60.0

    def require_possible(self) -> None:
        """Refuse what cannot run on this machine.

        Raises:
            InputError: A backend that is not used.
            ArgumentError: NCCL between CPUs.
            NotThereError: No GPU.
        """
        from pipesched.workflows import require_possible

        if self.backend != "auto" and not self.distributed:
            raise InputError(f"--backend: got {self.backend}, expected --distributed with it; add it")
        if self.advance is not None and not self.distributed:
            raise InputError(
                f"--advance: got {self.advance}, expected --distributed with it: in one process ranks take turns, and "
                "no order is faster; add it"
            )
        if self.device == "cuda":
            require_gpu("--device: got cuda", "--device cpu")
        require_possible(self.keywords())

    def begun(self, recipe: ScheduleSpec) -> ScheduleSpec:
        """Return `recipe` as the run begins with it: where it is sought how far ahead forwards run, with none.

        Raises:
            InputError: The schedule cannot run ahead.
        """
        if self.advance is None:
            return recipe
        if not recipe.takes("advance"):
            raise InputError(
                f"--advance: got {self.advance} for {recipe.name or 'lists'}, which cannot run ahead, expected none; "
                "try -s avgpipe"
            )
        if "advance" in recipe.parameters:
            raise InputError(f"--advance: got {self.advance} and --set advance, expected one of them; leave one out")
        return replace(recipe, parameters={**recipe.parameters, "advance": 0})

    def keywords(self) -> RunKeywords:
        """Return how a model is run, as the library is told."""
        return {
            "optimizer": self.optimizer,
            "lr": self.lr,
            "seed": self.seed,
            "dtype": self.dtype,
            "device": self.device,
            "backend": self.backend,
            "threads": self.threads,
            "timeout_s": self.timeout,
            "prediction": self.prediction,
            "compression": self.compression,
            "averaging": self.averaging,
        }

    def spec(
        self, recipe: ScheduleSpec, model: Model, bounds: tuple[tuple[int, int], ...], limit_bytes: int | None = None
    ) -> RunSpec:
        """Return what is trained, and how; `limit_bytes` on each device, where it is sought how far ahead to run."""
        from pipesched.workflows import training_spec

        return training_spec(
            recipe,
            model.name,
            bounds,
            self.keywords(),
            num_steps=self.steps,
            batch_size=self.batch_size,
            advance=self.advance,
            limit_bytes=None if self.advance is None else limit_bytes,
        )
