"""Options of ``pipesched run`` and ``verify``: how to run, whatever the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from pipesched.cli.output.terminal import progress_bar
from pipesched.executor import Backend
from pipesched.schedules import LONGEST_S, PredictionRule

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.models import Model
    from pipesched.workflows import RunKeywords


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run, whatever the schedule."""

    optimizer: Optimizer = "adamw"
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0, max=1e6)] = 1e-3
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    backend: Annotated[Backend, typer.Option(help="Of the messages; auto: nccl where every rank has a GPU.")] = "auto"
    threads: Threads = 1
    iterations: Annotated[int, typer.Option(help="Measured runs of the list; the median one counts.", min=1)] = 5
    warmup: Annotated[int, typer.Option(help="Runs before them.", min=1)] = 1
    timeout: Annotated[
        float, typer.Option(help="How long one message may keep a rank waiting, in seconds.", min=0.1, max=LONGEST_S)
    ] = 60.0
    no_check: Annotated[bool, typer.Option("--no-check", help="Run a list even though the checker refuses it.")] = False
    no_pin: Annotated[bool, typer.Option("--no-pin", help="Let the system choose the cores of every rank.")] = False
    prediction: Annotated[
        PredictionRule | None,
        typer.Option(help="How weights are predicted where a schedule looks ahead; none: as it says."),
    ] = None
    compression: CompressionOption = None
    averaging: AveragingOption = "asynchronous"
    seed: Seed = 0

    def require_possible(self) -> None:
        """Refuse what cannot run on this machine.

        Raises:
            ArgumentError: NCCL between CPUs.
            NotThereError: No GPU.
        """
        from pipesched.workflows import require_possible

        if self.device == "cuda":
            require_gpu("--device: got cuda", "--device cpu")
        require_possible(self.keywords())

    def profile(self, model: Model, microbatch_sizes: Sequence[int], num_ranks: int, *, splits: bool = True) -> Profile:
        """Measure the layers of `model`, while as many processes are busy as the run will have.

        Args:
            splits: Whether to measure I and W too.

        Raises:
            ProfileError: The model fails.
        """
        from pipesched.profiles.processes import num_cores
        from pipesched.workflows import profile

        with progress_bar(f"profiling {model.name}") as tick:
            return profile(
                model,
                microbatch_sizes,
                optimizer=self.optimizer,
                dtype=self.dtype,
                device=self.device,
                threads=self.threads,
                companions=min(num_ranks, num_cores()) - 1 if self.device == "cpu" else 0,
                seed=self.seed,
                splits=splits,
                progress=tick,
            ).profile

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
            "is_pinned": not self.no_pin,
        }

    def counts(self) -> dict[str, Any]:
        """Return how often it is run, and whether the lists are checked before: fields of `Measure`."""
        return {"iterations": self.iterations, "warmup": self.warmup, "is_checked": not self.no_check}
