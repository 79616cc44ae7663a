"""The loss history of a training run: loss and accuracy of each step, and the step at which it diverged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pipesched.executor import RunEnded
from pipesched.executor.training.advance_policy import AdvanceTrials
from pipesched.executor.training.scores import Scores, ScoreTable, mean

DIVERGED = 10.0
"""Factor over the first loss above which the run counts as diverged."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """The point at which a run diverged.

    Attributes:
        step: The first diverged step, or the number of steps if only the final weights diverged.
        loss: The loss, which is not finite, or above `DIVERGED` times the first.
    """

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class Reached:
    """The first evaluation with the target accuracy.

    Attributes:
        num_steps: Steps of the evaluated weights.
        seconds: Measured time from the first op to these weights, without evaluations [s].
    """

    num_steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """The time in which one thread launched the ops of all ranks on GPUs.

    Attributes:
        launch_s: Launching, in all passes of the lists; waits for a full launch queue count too [s].
        run_s: The passes [s].
        num_passes: Passes.
        num_bound: Passes that launching bound: at its end each GPU had begun its last computation.
    """

    launch_s: float = 0.0
    run_s: float = 0.0
    num_passes: int = 0
    num_bound: int = 0

    @property
    def is_bound(self) -> bool:
        """Whether launching bound more than half of the passes."""
        return 2 * self.num_bound > self.num_passes


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training run: its scores, and the reason of an early end.

    Attributes:
        steps: The scores of every completed step, before its update.
        diverged: The point at which the run diverged, or None.
        held_out: The scores of the final weights on held-out samples; None without such samples, or if the run
            diverged.
        ahead: The trials of the search for the advance, or None without a search.
        looks: The held-out scores during the run, by the number of steps taken; empty if not requested.
        reached: The first evaluation with the target accuracy, which ended the run, or None.
        is_paused: Whether the run ended early on request, after a checkpoint.
        failures: Failures of ranks after which the run restarted from a checkpoint.
        launching: The time to launch the ops of all ranks on streams of GPUs; None otherwise.
    """

    steps: Sequence[Scores]
    diverged: Diverged | None
    held_out: Scores | None
    ahead: AdvanceTrials | None = None
    looks: Mapping[int, Scores] = field(default_factory=dict)
    reached: Reached | None = None
    is_paused: bool = False
    failures: tuple[str, ...] = ()
    launching: LaunchTimes | None = None


class RunDiverged(RunEnded):
    """The run has diverged."""


class TargetReached(RunEnded):
    """The held-out accuracy has reached its target."""


OnStep: TypeAlias = Callable[[int, Scores], None]
"""Called with a step and its scores as soon as they are known; may raise to end the run."""


class LossHistory:
    """Takes the scores of micro-batches as they arrive, and makes steps of them, in order.

    Args:
        microbatches_per_step: Micro-batches of each step.
        on_step: Called after each step.
        is_finite_checked: Whether the op with a non-finite loss fails by itself; the history then does not end the run.

    Attributes:
        diverged: The point at which the run diverged, or None so far.
    """

    def __init__(
        self,
        microbatches_per_step: int,
        on_step: OnStep | None = None,
        *,
        is_finite_checked: bool = False,
    ) -> None:
        self._per_step = microbatches_per_step
        self._on_step = on_step
        self._is_finite_checked = is_finite_checked
        self._waiting: dict[int, dict[int, Scores]] = {}
        self._steps = ScoreTable()
        self.diverged: Diverged | None = None

    def add(self, microbatch: int, scores: Scores) -> None:
        """Record the scores of one micro-batch.

        Raises:
            RunDiverged: The loss of its step has diverged.
        """
        self._waiting.setdefault(microbatch // self._per_step, {})[microbatch] = scores
        while len(self._waiting.get(len(self._steps), ())) == self._per_step:
            come = self._waiting.pop(len(self._steps))
            self._take(mean([come[number] for number in sorted(come)]))  # in a fixed order
            self._stop_if_diverged()

    def restore(self, steps: Sequence[Scores]) -> None:
        """Begin after the scores of `steps`; report each step as if it were new."""
        for scores in steps:
            self._take(scores)

    @property
    def steps(self) -> ScoreTable:
        """The scores of all steps so far; it grows with them."""
        return self._steps

    def cut(self, num_steps: int) -> None:
        """Drop the scores of micro-batches after `num_steps` steps, with a divergence among them."""
        self._steps = ScoreTable(self._steps.numbers[: 2 * num_steps])
        self.diverged = None

    def end(self, held_out: Scores | None = None) -> Trained:
        """Return the result of the run, with the scores of the final weights on held-out samples; no step follows."""
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
    """Return the log line of a step; None in place of a loss that is not finite, which JSON lacks."""
    loss = scores.loss if math.isfinite(scores.loss) else None
    line: dict[str, str | int | float | None] = {"scheme": scheme, "step": step, "samples": (step + 1) * batch_size}
    line["loss"] = loss
    if scores.accuracy is not None:
        line["accuracy"] = scores.accuracy
    return line
