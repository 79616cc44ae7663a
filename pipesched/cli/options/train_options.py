"""Options of ``pipesched train`` that do not depend on the schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.torch_options import require_device
from pipesched.executor import RunSettings

if TYPE_CHECKING:
    from pipesched.executor.launch import CheckpointSettings, RunSpec
    from pipesched.profiles.models import Model
    from pipesched.schedules.transforms import ScheduleSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions(RunSettings):
    """The settings of a training run, its steps, and its samples."""

    panel: ClassVar[str] = "Run"
    batch_size: Annotated[
        int,
        typer.Option(
            help="Samples of an optimizer step, of every schedule; of each pipeline of avgpipe.", min=1, max=2**31 - 1
        ),
    ] = 64
    steps: Annotated[int, typer.Option(help="Optimizer steps.", min=1, max=10**9)] = 100
    advance: Annotated[
        Literal["auto"] | None,
        typer.Option(
            help="Search for the advance of the forwards: further while a batch gets faster and --memory-limit allows."
        ),
    ] = None
    checkpoint: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for regular checkpoints.")] = None
    every: Annotated[
        int | None, typer.Option(help="Steps from one checkpoint to the next (default: 100).", min=1, max=2**31 - 1)
    ] = None
    keep: Annotated[
        int | None, typer.Option(help="Number of the newest checkpoints to keep (default: 3).", min=1, max=2**31 - 1)
    ] = None
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Checkpoint to continue from, or a folder for its newest one."),
    ] = None
    restarts: Annotated[
        int, typer.Option(help="Most restarts from the newest checkpoint after a rank fails.", min=0)
    ] = 0
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Start one process per rank, instead of all ranks in this one.")
    ] = False

    shown: ClassVar[dict[str, str | None]] = {
        **dict.fromkeys(("batch_size", "steps", "optimizer", "lr", "seed", "dtype", "device", "threads")),
        "prediction": "Rule for predicting weights where a schedule looks ahead (default: as in its paper).",
        **dict.fromkeys(("averaging", "advance", "checkpoint", "every", "keep", "resume", "restarts", "distributed")),
        "backend": "Backend of the messages between processes.",
        "compression": None,
        "timeout_s": "Longest wait of a process for one message [s].",
    }

    def require_possible(self) -> None:
        """Refuse settings that this machine cannot run.

        Raises:
            InputError: A backend that is not used.
            ArgumentError: NCCL between CPUs.
            NotThereError: No GPU.
        """
        from pipesched.workflows.arguments import require_possible

        if self.backend != "auto" and not self.distributed:
            raise InputError(f"--backend: got {self.backend}, expected --distributed with it; add it")
        if self.advance is not None and not self.distributed:
            raise InputError(
                f"--advance: got {self.advance}, expected --distributed with it: in one process ranks take turns, and "
                "no order is faster; add it"
            )
        require_device(self.device)
        require_possible(self)

    def checkpoints(self) -> CheckpointSettings | None:
        """Return the checkpoint settings of the run, or None without any.

        Raises:
            ArgumentError: An option has no effect.
            ExecutionError: The checkpoint does not exist, or is damaged.
        """
        from pipesched.workflows.training import checkpoint_settings, require_restartable

        settings = checkpoint_settings(self.checkpoint, self.every, self.keep, self.resume)
        require_restartable(self.restarts, settings, is_distributed=self.distributed)
        return settings

    def begun(self, schedule_spec: ScheduleSpec) -> ScheduleSpec:
        """Return the specification at the beginning of the run; a search for the advance begins with none.

        Raises:
            InputError: The schedule cannot run ahead.
        """
        if self.advance is None:
            return schedule_spec
        if not schedule_spec.takes("advance"):
            raise InputError(
                f"--advance: got {self.advance} for {schedule_spec.name or 'lists'}, which cannot run ahead, "
                "expected none; try -s avgpipe"
            )
        if "advance" in schedule_spec.parameters:
            raise InputError(f"--advance: got {self.advance} and --set advance, expected one of them; leave one out")
        return replace(schedule_spec, parameters={**schedule_spec.parameters, "advance": 0})

    def spec(
        self,
        schedule_spec: ScheduleSpec,
        model: Model,
        bounds: tuple[tuple[int, int], ...],
        limit_bytes: int | None = None,
        checkpoints: CheckpointSettings | None = None,
    ) -> RunSpec:
        """Return the training job; `limit_bytes` of each device is for a search for the advance."""
        from pipesched.workflows.training import training_spec

        return training_spec(
            schedule_spec,
            model.name,
            bounds,
            self,
            num_steps=self.steps,
            batch_size=self.batch_size,
            advance=self.advance,
            limit_bytes=None if self.advance is None else limit_bytes,
            checkpoints=checkpoints,
        )
