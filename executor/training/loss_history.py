"""The loss history of a training run: loss and accuracy of each step, and the step at which it diverged."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias, final, overload

import torch
from torch import Tensor, nn

from pipesched.executor import RunEnded
from pipesched.executor.training.advance_policy import AdvanceTrials

DIVERGED = 10.0
"""A loss above so many times the first one is not coming back: the run has diverged."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of samples: their mean loss, and the accuracy where there are classes.

    Attributes:
        loss: Mean.
        accuracy: Share of targets with the highest score; None where targets are no classes.
    """

    loss: float
    accuracy: float | None


@final
class ScoreTable(Sequence[Scores]):
    """The scores of the steps of a run, in 16 bytes each, however many they are.

    Args:
        numbers: Loss and accuracy of the first steps, in turn; an accuracy that is NaN stands for none.

    Attributes:
        numbers: Those of all steps.
    """

    def __init__(self, numbers: Iterable[float] = ()) -> None:
        self.numbers = array("d", numbers)

    def append(self, scores: Scores) -> None:
        """Add the scores of the next step."""
        self.numbers.append(scores.loss)
        self.numbers.append(math.nan if scores.accuracy is None else scores.accuracy)

    def copy(self) -> ScoreTable:
        """Return the same scores, to which others may be added without these."""
        return ScoreTable(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers) // 2

    @overload
    def __getitem__(self, index: int) -> Scores: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Scores]: ...
    def __getitem__(self, index: int | slice) -> Scores | Sequence[Scores]:
        if isinstance(index, slice):  # not as objects, which take six times as much
            return ScoreTable(chain.from_iterable(self._pair(step) for step in range(len(self))[index]))
        loss, accuracy = self._pair(range(len(self))[index])
        return Scores(loss, None if math.isnan(accuracy) else accuracy)

    def _pair(self, step: int) -> array[float]:
        return self.numbers[2 * step : 2 * step + 2]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScoreTable) and self.numbers.tobytes() == other.numbers.tobytes()

    def __repr__(self) -> str:
        return f"ScoreTable({list(self)})"


@dataclass(frozen=True, slots=True)
class Diverged:
    """Where a run was lost.

    Attributes:
        step: The first of such a loss; behind the last where only the final weights show it.
        loss: The loss, which is not finite, or `DIVERGED` times above the first.
    """

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training run: its scores, and why it ended.

    Attributes:
        steps: The scores of every step, before its update, as far as the run came.
        diverged: Why it ended early; None if it did not.
        held_out: The scores of the final weights on samples kept from training; None if there are none, or the run
            diverged.
        ahead: How far ahead the forwards came to run; None where that was not sought.
        looks: The held-out scores on the way, by the number of steps taken; empty where nobody looked.
        is_paused: Whether it ended early because that was asked for, after a checkpoint.
        failures: What ranks failed of, where it was started again from a checkpoint.
    """

    steps: Sequence[Scores]
    diverged: Diverged | None
    held_out: Scores | None
    ahead: AdvanceTrials | None = None
    looks: Mapping[int, Scores] = field(default_factory=dict)
    is_paused: bool = False
    failures: tuple[str, ...] = ()


class RunDiverged(RunEnded):
    """The run has diverged."""


OnStep: TypeAlias = Callable[[int, Scores], None]
"""Told a step and its scores as soon as they are known; may raise to end the run."""


class LossHistory:
    """Takes the scores of micro-batches as they come, and makes steps of them, in order.

    Args:
        microbatches_per_step: Micro-batches of each step.
        on_step: Told of each step.
        is_finite_checked: Whether the op that gives a loss that is not finite fails, and the run goes on until it does.

    Attributes:
        diverged: Where the run was lost; None so far.
    """

    def __init__(
        self, microbatches_per_step: int, on_step: OnStep | None = None, *, is_finite_checked: bool = False
    ) -> None:
        self._per_step = microbatches_per_step
        self._on_step = on_step
        self._is_finite_checked = is_finite_checked
        self._waiting: dict[int, dict[int, Scores]] = {}
        self._steps = ScoreTable()
        self.diverged: Diverged | None = None

    def add(self, microbatch: int, scores: Scores) -> None:
        """Take note of one micro-batch.

        Raises:
            RunDiverged: The loss of its step has diverged.
        """
        self._waiting.setdefault(microbatch // self._per_step, {})[microbatch] = scores
        while len(self._waiting.get(len(self._steps), ())) == self._per_step:
            come = self._waiting.pop(len(self._steps))
            self._take(mean([come[number] for number in sorted(come)]))  # in one order, whoever came first
            self._stop_if_diverged()

    def restore(self, steps: Sequence[Scores]) -> None:
        """Begin after the scores of `steps`; each is told of as if it came now."""
        for scores in steps:
            self._take(scores)

    @property
    def steps(self) -> ScoreTable:
        """The scores of all steps so far; it grows with them."""
        return self._steps

    def listen(self, microbatch: int, output: Tensor, target: Tensor, loss: Tensor) -> None:
        """Take note of one forward of the last stage."""
        self.add(microbatch, score(output, target, loss))

    def end(self, held_out: Scores | None = None) -> Trained:
        """Return what the run gave, with the scores of the final weights on held-out samples; no step comes after."""
        if self.diverged is None and held_out is not None and not math.isfinite(held_out.loss):
            self.diverged = Diverged(len(self._steps), held_out.loss)
        return Trained(self._steps, self.diverged, held_out if self.diverged is None else None)

    def _take(self, scores: Scores) -> None:
        step = len(self._steps)
        self._steps.append(scores)
        if self._on_step is not None:
            self._on_step(step, scores)

    def _stop_if_diverged(self) -> None:
        loss = self._steps[-1].loss
        is_finite = math.isfinite(loss)
        if loss > DIVERGED * abs(self._steps[0].loss) if is_finite else not self._is_finite_checked:
            self.diverged = Diverged(len(self._steps) - 1, loss)
            raise RunDiverged


def step_line(scheme: str, step: int, scores: Scores, batch_size: int) -> dict[str, str | int | float | None]:
    """Return what a log says of a step; None stands for a loss that is not finite, for JSON knows none."""
    loss = scores.loss if math.isfinite(scores.loss) else None
    line: dict[str, str | int | float | None] = {"scheme": scheme, "step": step, "samples": (step + 1) * batch_size}
    line["loss"] = loss
    if scores.accuracy is not None:
        line["accuracy"] = scores.accuracy
    return line


def score(output: Tensor, target: Tensor, loss: Tensor) -> Scores:
    """Return the scores of one output; its accuracy if each target is the number of one of the last dimension."""
    is_class = not target.is_floating_point() and output.shape[:-1] == target.shape
    accuracy = (output.argmax(-1) == target).double().mean().item() if is_class else None
    return Scores(loss.item(), accuracy)


def score_model(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    samples: tuple[Tensor, Tensor],
    batch_size: int,
) -> Scores:
    """Return the scores of the whole model on (inputs, targets), so many samples at a time."""
    scores: list[Scores] = []
    sizes: list[int] = []
    with torch.no_grad():
        for start in range(0, len(samples[0]), batch_size):
            x, y = (tensor[start : start + batch_size] for tensor in samples)
            output = module(x)
            scores.append(score(output, y, loss(output, y)))
            sizes.append(len(x))
    return mean(scores, sizes)


def mean(scores: Sequence[Scores], sizes: Sequence[int] | None = None) -> Scores:
    """Return the mean of `scores`, which count as much as their `sizes`; None: all alike."""
    weights = [1] * len(scores) if sizes is None else sizes
    accuracies = [score.accuracy for score in scores if score.accuracy is not None]
    return Scores(
        sum(weight * score.loss for score, weight in zip(scores, weights, strict=True)) / sum(weights),
        sum(weight * accuracy for accuracy, weight in zip(accuracies, weights, strict=True)) / sum(weights)
        if accuracies
        else None,
    )
