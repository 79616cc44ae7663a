"""From options to the job of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.schedule_options import Seed
from pipesched.cli.options.torch_options import (
    CompressionOption,
    DeviceOption,
    Dtype,
    Optimizer,
    Threads,
    require_gpu,
    torch_dtype,
)
from pipesched.cli.output.terminal import progress_bar
from pipesched.schedules import LONGEST_S, PredictionRule

if TYPE_CHECKING:
    from pipesched.cli.options.train_options import TrainOptions
    from pipesched.executor.launch import RunSpec
    from pipesched.profiles.costs import Profile, StageCosts
    from pipesched.profiles.models import Model
    from pipesched.schedules import Schedule, ScheduleTraits

BackendOption = Literal["auto", "gloo", "nccl"]
HowOption = Literal["sleep", "busy"]
AveragingOption = Annotated[
    Literal["asynchronous", "synchronous"],
    typer.Option(help="Elastic: with the reference of the iteration before, or wait for that of this one."),
]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run, whatever the schedule."""

    optimizer: Optimizer = "adamw"
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0, max=1e6)] = 1e-3
    dtype: Dtype = "float32"
    device: DeviceOption = "cpu"
    backend: Annotated[BackendOption, typer.Option(help="Of the messages; auto: nccl where every rank has a GPU.")] = (
        "auto"
    )
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
            InputError: NCCL between CPUs.
            NotThereError: No GPU.
        """
        if self.backend == "nccl" and self.device == "cpu":
            raise InputError("--backend: got nccl with --device cpu, expected gloo; try --backend auto")
        if self.device == "cuda":
            require_gpu("--device: got cuda", "--device cpu")

    def profile(self, model: Model, microbatch_sizes: Sequence[int], num_ranks: int, *, splits: bool = True) -> Profile:
        """Measure the layers of `model`, while as many processes are busy as the run will have.

        Args:
            splits: Whether to measure I and W too.

        Raises:
            ProfileError: The model fails.
        """
        from pipesched.profiles.measuring import profile_model
        from pipesched.profiles.processes import num_cores

        with progress_bar(f"profiling {model.name}") as tick:
            return profile_model(
                model,
                microbatch_sizes=microbatch_sizes,
                optimizer=self.optimizer,
                dtype=torch_dtype(self.dtype),
                device=self.device,
                threads=self.threads,
                companions=min(num_ranks, num_cores()) - 1 if self.device == "cpu" else 0,
                seed=self.seed,
                splits=splits,
                progress=lambda done, total, text: tick(done / total),  # noqa: ARG005
            )

    def job(
        self,
        schedule: Schedule,
        *,
        model: str | None = None,
        bounds: tuple[tuple[int, int], ...] = (),
        microbatch_size: int = 1,
        emulate: StageCosts | None = None,
        how: HowOption = "sleep",
        cluster: str | None = None,
    ) -> RunSpec:
        """Return the job of running `schedule` with a model, or emulated, with messages as its costs say."""
        from pipesched.executor.launch import Measure, RunSpec
        from pipesched.schedules.formats import to_json

        return RunSpec(
            job=Measure(
                schedule=to_json(schedule),
                microbatch_size=microbatch_size,
                emulate=emulate,
                how=how,
                cluster=cluster,
                iterations=self.iterations,
                warmup=self.warmup,
                is_checked=not self.no_check,
            ),
            model=model,
            bounds=bounds,
            optimizer=self.optimizer,
            lr=self.lr,
            seed=self.seed,
            dtype=self.dtype,
            device=self.device,
            backend=self.backend,
            threads=self.threads,
            timeout_s=self.timeout,
            prediction=self.prediction,
            compression=self.compression if emulate is None else None,
            averaging=self.averaging,
            is_pinned=not self.no_pin,
        )


def require_epsilon(options: RunOptions | TrainOptions, traits: Sequence[ScheduleTraits] = ()) -> None:
    """Refuse numbers in which Adam's rule divides by zero, of the optimizer or of weights predicted.

    Raises:
        InputError: They are.
    """
    from pipesched.executor import epsilon_fault

    own = [each.prediction for each in traits if each.prediction is not None]
    for rule in (None, *(options.prediction or rule for rule in own)):
        fault = epsilon_fault(options.dtype, options.optimizer, rule)
        if fault is not None:
            raise InputError(f"--dtype: {fault}")


def require_used(options: RunOptions | TrainOptions, names: Sequence[str]) -> None:
    """Refuse a rule of prediction or averaging that none of the schedules `names` would follow.

    Raises:
        InputError: No schedule looks ahead, or none is averaged.
    """
    from pipesched.schedules.builders import find

    entries, schedules = [find(name) for name in names], ",".join(names)
    if options.prediction is not None and all(entry.traits.prediction is None for entry in entries):
        raise InputError(
            f"--prediction: got {options.prediction.value} with {schedules}, expected a schedule that looks ahead; "
            "try -s pipeoptim, or leave it out"
        )
    if options.averaging != "asynchronous" and not any(entry.traits.averages for entry in entries):
        raise InputError(
            f"--averaging: got {options.averaging} with {schedules}, expected a schedule that is averaged; "
            "try -s avgpipe, or leave it out"
        )
