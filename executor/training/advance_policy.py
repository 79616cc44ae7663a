"""The advance policy finds how far ahead forwards should run: AvgPipe's Algorithm 1 (PPoPP 2023, section 4.2).

    advance      0          1          2            1          1
    batches      -|b b b b  -|b b b b  -|b b b b    b b b b b  ..
                            faster     not faster: step back, and stay

The policy begins as 1F1B, and lets the forwards run one further ahead while that is faster and memory allows. A single
batch is a poor measure, so each advance is kept for a few batches. The first is not counted, because its lists begin
with an empty pipeline. The median of the others must be shorter by more than a hundredth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

BATCHES = 6
"""Batches per trial of an advance."""

_LEAST_GAIN = 0.01
"""Relative gain below which a trial is not faster."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The measurement of an advance.

    Attributes:
        seconds: The median of its batches.
        peak_bytes: Peak memory of the fullest device, or None if not measured.
    """

    advance: int
    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class AdvanceTrials:
    """The trials of a run that searches for its advance, and the result.

    Attributes:
        advance: The last advance of the run.
        trials: The trials, in order.
    """

    advance: int
    trials: tuple[Trial, ...]


@final
class AdvancePolicy:
    """Decides how far ahead to run next.

    Args:
        most: Largest possible advance.
        limit_bytes: Memory limit of every device; None for no limit.

    Attributes:
        advance: The advance to run with.
        is_settled: Whether the advance is final.
        trials: All trials so far, in order.
    """

    def __init__(self, most: int, limit_bytes: int | None = None) -> None:
        self._most = most
        self._limit_bytes = limit_bytes
        self._best: Trial | None = None
        self.advance = 0
        self.is_settled = most == 0
        self.trials: list[Trial] = []

    @property
    def advance_trials(self) -> AdvanceTrials:
        """The trials so far, and the present advance."""
        return AdvanceTrials(self.advance, tuple(self.trials))

    def judge(self, batches_s: Sequence[float], peak_bytes: int | None = None) -> None:
        """Record the measurement of the present advance, and choose the next.

        Args:
            batches_s: Seconds of each batch but the first [s].
            peak_bytes: Peak memory of the fullest device.
        """
        trial = Trial(self.advance, median(batches_s), peak_bytes)
        self.trials.append(trial)
        is_faster = self._best is None or trial.seconds < self._best.seconds * (1 - _LEAST_GAIN)
        if is_faster and (self._best is None or self._fits(peak_bytes)):
            self._best = trial
            self.is_settled = trial.advance == self._most or not self._fits(self._next_peak_bytes())
        else:
            self.is_settled = True
        assert self._best is not None, "the first trial is the best until then"
        self.advance = self._best.advance + (0 if self.is_settled else 1)

    def _fits(self, peak_bytes: int | None) -> bool:
        return self._limit_bytes is None or peak_bytes is None or peak_bytes <= self._limit_bytes

    def _next_peak_bytes(self) -> int | None:
        """Return the estimated peak of the next advance: it adds as much as the last one did, but at least 0."""
        *before, now = (trial.peak_bytes for trial in self.trials)
        if now is None or not before or before[-1] is None:
            return now
        return now + max(0, now - before[-1])
