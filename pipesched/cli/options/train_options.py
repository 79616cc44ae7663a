"""Options of ``pipesched train``: how to train, whatever the schedule."""

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
    """How to train: the settings of a run, how long, and on how many samples."""

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
        typer.Option(help="How far ahead forwards run: further while a batch gets faster and --memory-limit allows."),
    ] = None
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder that gets a checkpoint now and then.")
    ] = None
    every: Annotated[
        int | None, typer.Option(help="Steps from one checkpoint to the next; unless given 100.", min=1, max=2**31 - 1)
    ] = None
    keep: Annotated[
        int | None, typer.Option(help="Newest checkpoints that are kept; unless given 3.", min=1, max=2**31 - 1)
    ] = None
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Go on from a checkpoint, or from the newest in a folder of them."),
    ] = None
    restarts: Annotated[
        int, typer.Option(help="How often to start again from the newest checkpoint, where a rank fails.", min=0)
    ] = 0
    distributed: Annotated[
        bool, typer.Option("--distributed", help="One process per rank, not all ranks in this one.")
    ] = False

    shown: ClassVar[dict[str, str | None]] = {
        **dict.fromkeys(("batch_size", "steps", "optimizer", "lr", "seed", "dtype", "device", "threads")),
        "prediction": "How weights are predicted where a schedule looks ahead; unless given as in its paper.",
        **dict.fromkeys(("averaging", "advance", "checkpoint", "every", "keep", "resume", "restarts", "distributed")),
        "backend": "Of the messages between processes.",
        "compression": None,
        "timeout_s": "How long one message may keep a process waiting [s].",
    }

    def require_possible(self) -> None:
        """Refuse what cannot run on this machine.

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
        """Return when checkpoints are written, and which one the run goes on from; None if nothing was said of any.

        Raises:
            ArgumentError: An option has no effect.
            ExecutionError: There is no checkpoint, or it is damaged.
        """
        from pipesched.workflows.training import checkpoint_settings, require_restartable

        settings = checkpoint_settings(self.checkpoint, self.every, self.keep, self.resume)
        require_restartable(self.restarts, settings, is_distributed=self.distributed)
        return settings

    def begun(self, schedule_spec: ScheduleSpec) -> ScheduleSpec:
        """Return `schedule_spec` as the run begins with it: where it is sought how far ahead forwards run, with none.

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
        """Return what is trained, and how; `limit_bytes` on each device, where it is sought how far ahead to run."""
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
