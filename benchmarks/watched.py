"""Training whose held-out accuracy is looked at on the way."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from torch import nn

from pipesched.executor.core import ModuleStage, OnLoss, Stage
from pipesched.executor.runs import TrainingSetup
from pipesched.schedules import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(TrainingSetup):
    """Training whose held-out accuracy is looked at on the way.

    Stages come to a number of Steps at different moments of a run without a flush. Each is copied when it does, and the
    copies together are judged: they are what a run of so many steps ends with.

    Attributes:
        every: Steps from one look to the next.
        accuracies: By the number of steps.
    """

    every: int
    accuracies: dict[int, float] = field(default_factory=dict)

    def stages(
        self, lists: Schedule, on_loss: OnLoss, on_step: Callable[[int, int], None] | None = None
    ) -> Callable[[int], dict[int, Stage]]:
        """Return what builds the stages of a rank, as that of `TrainingSetup` does."""
        assert on_step is None, "this is who is told"
        copies: dict[int, dict[int, nn.Module]] = {}

        def build(rank: int) -> dict[int, Stage]:
            def look(stage: int, version: int) -> None:
                built = stages[stage]
                if version % self.every or not isinstance(built, ModuleStage):
                    return
                so_far = copies.setdefault(version, {})
                so_far[stage] = deepcopy(built.module)
                if len(so_far) == lists.num_stages:
                    self._judge(version, copies.pop(version))

            stages = super(Watched, self).stages(lists, on_loss, look)(rank)
            return stages

        return build

    def _judge(self, version: int, modules: dict[int, nn.Module]) -> None:
        scores = self.judge(modules[stage] for stage in sorted(modules))
        if scores is not None and scores.accuracy is not None:
            self.accuracies[version] = scores.accuracy
