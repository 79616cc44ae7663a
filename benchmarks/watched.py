"""Training whose held-out accuracy is looked at on the way."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from torch import nn

from pipesched.executor.core import ModuleStage, OnLoss, Stage, build_stages
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

    def stages(self, lists: Schedule, on_loss: OnLoss) -> Callable[[int], dict[int, Stage]]:
        """Return what builds the stages of a rank, as that of `TrainingSetup` does."""
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

            stages = build_stages(
                lists,
                rank,
                self.model,
                self.spec.bounds,
                optimizer=self.spec.optimizer,
                lr=self.spec.lr,
                seed=self.spec.seed,
                dtype=self.dtype,
                device=self.device,
                prediction=self.spec.prediction,
                on_loss=on_loss,
                on_step=look,
            )
            return stages

        return build

    def _judge(self, version: int, modules: dict[int, nn.Module]) -> None:
        scores = self.judge(modules[stage] for stage in sorted(modules))
        if scores is not None and scores.accuracy is not None:
            self.accuracies[version] = scores.accuracy
