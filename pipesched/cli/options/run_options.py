"""Options of ``pipesched run`` and ``verify`` that do not depend on the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipesched.cli.options.torch_options import require_device
from pipesched.cli.terminal import progress_bar
from pipesched.executor import LayerSettings
from pipesched.questions import MeasureSettings
from pipesched.schedules.common import values_of

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.models import Model

_PASSES, _REPEATS, _WARMUP = 3, 4, 1
"""Short profiles behind each median, measured runs of a layer in each, and warm-up runs before."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(MeasureSettings):
    """The settings of a measured run, for commands that profile a model first."""

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
                companions=num_companions(num_ranks, self.device),
                pipelines=num_sharing(num_pipelines, self.device),
                splits=splits,
                progress=tick,
                **values_of(self, LayerSettings),
            ).profile
