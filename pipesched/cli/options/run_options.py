"""Options of ``pipesched run`` and ``verify`` that do not depend on the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pipesched.cli.options.torch_options import require_device
from pipesched.cli.terminal import progress_bar
from pipesched.executor import RunSettings

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.models import Model

_PASSES, _REPEATS, _WARMUP = 3, 4, 1
"""Short profiles behind each median, measured runs of a layer in each, and warm-up runs before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(RunSettings):
    """The settings of a run, and its number of iterations, for any schedule."""

    panel: ClassVar[str] = "Run"
    iterations: Annotated[int, typer.Option(help="Measured runs of the list; the median counts.", min=1)] = 5
    warmup: Annotated[int, typer.Option(help="Runs before the measured ones.", min=1)] = 1
    no_check: Annotated[bool, typer.Option("--no-check", help="Run a list that the checker refuses.")] = False

    shown: ClassVar[dict[str, str | None]] = {
        **dict.fromkeys(("optimizer", "lr", "dtype", "device", "transport", "has_green_contexts")),
        **dict.fromkeys(("backend", "threads", "iterations", "warmup", "timeout_s", "no_check", "is_pinned")),
        **dict.fromkeys(("prediction", "compression", "averaging", "seed")),
    }

    def require_possible(self) -> None:
        """Refuse settings that this machine cannot run.

        Raises:
            ArgumentError: NCCL between CPUs.
            NotThereError: No GPU.
        """
        from pipesched.workflows.arguments import require_possible

        require_device(self.device)
        require_possible(self)

    def profile(
        self,
        model: Model,
        microbatch_sizes: Sequence[int],
        num_ranks: int,
        *,
        splits: bool = True,
        num_pipelines: int = 1,
    ) -> Profile:
        """Measure the layers of `model` in short passes, while other cores are as busy as in the run.

        Args:
            splits: Whether to measure I and W too.
            num_pipelines: Most parallel pipelines, for the slowdown of a shared core.

        Raises:
            ProfileError: The model fails.
        """
        from pipesched.profiles.processes import num_companions, num_sharing
        from pipesched.workflows.measuring import profile

        with progress_bar(f"profiling {model.name}") as tick:
            return profile(
                model,
                microbatch_sizes,
                repeats=_REPEATS,
                warmup=_WARMUP,
                passes=_PASSES,
                optimizer=self.optimizer,
                dtype=self.dtype,
                device=self.device,
                threads=self.threads,
                companions=num_companions(num_ranks, self.device),
                pipelines=num_sharing(num_pipelines, self.device),
                seed=self.seed,
                splits=splits,
                progress=tick,
            ).profile

    def counts(self) -> dict[str, Any]:
        """Return the numbers of iterations, and whether lists are checked before: fields of `Measure`."""
        return {"iterations": self.iterations, "warmup": self.warmup, "is_checked": not self.no_check}
