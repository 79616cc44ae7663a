"""Options for failures of a training: their rate, and their costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.key_values import time_s

if TYPE_CHECKING:
    from pipesched.workflows.simulating import Goodput

_PER_DEVICE = "/device"
_EXAMPLES = {"--restart": "120s", "--checkpoint": "20s", "--steps": "10000"}


@dataclass(frozen=True, slots=True)
class FailureOptions:
    """The rate of failures of a training, and their costs; the options are given together or not at all."""

    panel: ClassVar[str] = "Failures"
    fail_every: Annotated[
        str | None,
        typer.Option(
            help="Mean time between failures, for a training's goodput and best checkpoint interval: 3h of the whole "
            "job, or 20000h/device."
        ),
    ] = None
    restart: Annotated[str | None, typer.Option(help="Time from a failure to the first step after it: 120s.")] = None
    checkpoint: Annotated[str | None, typer.Option(help="Time that a checkpoint blocks the training: 20s.")] = None
    steps: Annotated[int | None, typer.Option(help="Steps of the training.", min=1, max=10**9)] = None
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between two checkpoints, for comparison with the best interval.", min=1)
    ] = None

    def require_whole(self) -> None:
        """Refuse some of the options without the others, and invalid times.

        Raises:
            InputError: An option is missing or invalid.
        """
        needed = {"--restart": self.restart, "--checkpoint": self.checkpoint, "--steps": self.steps}
        if self.fail_every is None:
            given = {**needed, "--checkpoint-every": self.checkpoint_every}
            alone = next((option for option, value in given.items() if value is not None), None)
            if alone is not None:
                raise InputError(f"{alone}: got it without --fail-every, expected both; add --fail-every 3h")
            return
        missing = [option for option, value in needed.items() if value is None]
        if missing:
            added = " ".join(f"{option} {_EXAMPLES[option]}" for option in missing)
            raise InputError(f"--fail-every: got it without {', '.join(missing)}, expected them too; add {added}")
        self._times_s(num_devices=1)

    def goodput(self, step_s: float, num_devices: int, seed: int) -> Goodput | None:
        """Return the goodput of a training, or None without the options of failures.

        Args:
            step_s: Seconds of a step.
            num_devices: Devices of the job.
            seed: Seed of the failures.

        Raises:
            ArgumentError: A number makes no sense.
            SimulationError: A run fails too often to be simulated.
        """
        if self.fail_every is None:
            return None
        from pipesched.workflows.simulating import goodput

        assert self.steps is not None, "it is whole"
        return goodput(
            step_s, self.steps, checkpoint_every=self.checkpoint_every, seed=seed, **self._times_s(num_devices)
        )

    def _times_s(self, num_devices: int) -> dict[str, Any]:
        text = (self.fail_every or "").strip()
        fail_every_s = time_s(text.removesuffix(_PER_DEVICE), "--fail-every", "3h, or 20000h/device")
        if not fail_every_s:
            raise InputError(f"--fail-every: got {text}, expected a time above 0; try --fail-every 3h")
        return {
            "fail_every_s": fail_every_s / (num_devices if text.endswith(_PER_DEVICE) else 1),
            "restart_s": time_s(self.restart or "", "--restart", _EXAMPLES["--restart"]),
            "checkpoint_s": time_s(self.checkpoint or "", "--checkpoint", _EXAMPLES["--checkpoint"]),
        }
