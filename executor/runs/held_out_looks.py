"""Scores on held-out samples during a training run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy

from torch import nn

from pipesched.executor.training import Scores


class HeldOutLooks:
    """The held-out scores of the model after given numbers of steps.

    Without a flush, stages reach a number of Steps at different times. Each stage is copied when it reaches the
    number, and the copies are scored together.

    Args:
        every: Steps between two scores; None for no scores.
        num_stages: Number of stages of the model.
        judge: Returns the scores of the model made of these stages, or None without held-out samples.
    """

    def __init__(
        self, every: int | None, num_stages: int, judge: Callable[[Iterable[nn.Module]], Scores | None]
    ) -> None:
        self.scores: dict[int, Scores] = {}
        self._every, self._num_stages, self._judge = every, num_stages, judge
        self._copies: dict[int, dict[int, nn.Module]] = {}

    def look(self, stage: int, num_steps: int, module: nn.Module) -> None:
        """Record that a stage has stepped; score all stages once each has taken `num_steps`."""
        if self._every is None or num_steps % self._every or num_steps in self.scores:
            return
        copies = self._copies.setdefault(num_steps, {})
        copies[stage] = deepcopy(module)
        if len(copies) < self._num_stages:
            return
        del self._copies[num_steps]
        scores = self._judge(copies[index] for index in range(self._num_stages))
        if scores is not None:
            self.scores[num_steps] = scores
