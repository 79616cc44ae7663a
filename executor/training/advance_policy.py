"""The advance policy finds how far ahead forwards should run: AvgPipe's Algorithm 1 (PPoPP 2023, section 4.2).

    advance      0          1          2            1          1
    batches      -|b b b b  -|b b b b  -|b b b b    b b b b b  ..
                            faster     not faster: step back, and stay

It begins as 1F1B, and lets the forwards run further ahead by one while that is faster and memory allows. A batch alone
is a poor measure: so each advance is kept for a few, the first of which is not counted (its lists begin with an empty
pipeline), and the median of the others must be shorter by more than a hundredth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

BATCHES = 6
"""The batches that each advance is tried for."""

_LEAST_GAIN = 0.01
"""Relative; what is shorter by less is not faster."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What an advance was found to take.

    Attributes:
        seconds: The median of its batches.
        peak_bytes: Held on the fullest device; None where nobody counted.
    """

    advance: int
    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class AdvanceTrials:
    """The trials of a run that seeks its advance, and what it has come to.

    Attributes:
        advance: The last one it ran with.
        trials: The trials, in order.
    """

    advance: int
    trials: tuple[Trial, ...]


@final
class AdvancePolicy:
    """Says how far ahead to run next.

    Args:
        most: Further ahead no rank can be.
        limit_bytes: Bytes that every device may hold; None for no limit.

    Attributes:
        advance: The one to run with.
        is_settled: Whether it stays.
        trials: All so far, in order.
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
        """The trials so far, and the advance that is the present one."""
        return AdvanceTrials(self.advance, tuple(self.trials))

    def judge(self, batches_s: Sequence[float], peak_bytes: int | None = None) -> None:
        """Take what the present advance took, and decide on the next.

        Args:
            batches_s: Seconds of each batch but the first [s].
            peak_bytes: Held on the fullest device.
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
        """Return what one more will hold, if it adds as much as the last one did; at least what is held now."""
        *before, now = (trial.peak_bytes for trial in self.trials)
        if now is None or not before or before[-1] is None:
            return now
        return now + max(0, now - before[-1])
