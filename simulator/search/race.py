"""Race contenders whose times are noisy: paired rounds in growing slices, until one is clear of all others.

    slice 1   a b c d   a b c d   a b c d        every contender once a round, so that the machine's drift cancels
    slice 2   a c       a c       a c            b is shown slower and leaves; d is further behind than c, and waits
    slice 3   a d       ...                      c is shown slower and leaves; d runs again

A contender leaves for good if the interval of its lag behind the leader lies above 0, and the race is over when one
is left. Of the contenders that stay, a half, a quarter and so on run in the next slices (successive halving), the
nearest to the leader first.

A lag is the mean of the logarithms of paired ratios, with Student's t-interval. Its level is shared out among all
contenders, and among the looks, of which the k-th gets 1 / (k (k + 1)): so all intervals hold together, however often
one looks (Bonferroni). The risk that the fastest contender leaves is less than half of `risk`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import final

_FIRST = 3
"""Rounds of the first slice, whose spread is the first that says anything."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Relative extra time of a contender over the leader, with the interval of the race.

    Attributes:
        high: Upper end, infinite if there are too few rounds for an interval; then `low` is -1.
    """

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the whole interval shows the contender slower than the leader."""
        return self.low > 0.0

    def to_dict(self) -> dict[str, float | None]:
        """Return plain data; the interval is None if it is unknown."""
        known = math.isfinite(self.high)
        return {"mean": self.mean, "low": self.low if known else None, "high": self.high if known else None}


@final
class Race:
    """Contenders by number, the one that is expected to win first.

    Args:
        num_contenders: At least 1.
        risk: Chance that any interval of the race does not hold, over the whole race.
    """

    def __init__(self, num_contenders: int, risk: float = 0.05) -> None:
        self._staying = list(range(num_contenders))
        self._rivals = max(1, num_contenders - 1)
        self._risk = risk
        self._rounds: list[Mapping[int, float]] = []
        self._num_looks = 0
        self._looks_with: dict[int, int] = {}  # by contender, the last look before which it ran

    @property
    def staying(self) -> tuple[int, ...]:
        """The contenders that may be the fastest, the leader first, and then the nearest to it."""
        return tuple(self._staying)

    @property
    def is_over(self) -> bool:
        """Whether only one contender is left."""
        return len(self._staying) < 2

    @property
    def num_rounds(self) -> int:
        """The number of rounds so far."""
        return len(self._rounds)

    @property
    def running(self) -> tuple[int, ...]:
        """The contenders that run in the next slice: the leader, and the nearest of the others."""
        if self.is_over:
            return self.staying
        leader, *others = self._staying
        return (leader, *others[: math.ceil(len(others) / 2**self._num_looks)])

    @property
    def slice_rounds(self) -> int:
        """The number of rounds of the next slice, equal to the number so far."""
        return max(_FIRST, self.num_rounds)

    def add(self, seconds: Mapping[int, float]) -> None:
        """Take the seconds of one round, above 0, of every contender that ran in it."""
        self._rounds.append(seconds)
        self._looks_with.update(dict.fromkeys(seconds, self._num_looks + 1))

    def withdraw(self, contender: int) -> None:
        """Take out a contender that cannot be run."""
        self._staying.remove(contender)

    def look(self) -> None:
        """End a slice: find the leader, and drop contenders that are shown slower."""
        self._num_looks += 1
        was, *_ = self._staying
        leader = min(self._staying, key=lambda contender: self.lag(contender, was).mean)
        lags = {contender: self.lag(contender, leader) for contender in self._staying if contender != leader}
        others = [contender for contender, lag in lags.items() if not lag.is_clear]
        self._staying = [leader, *sorted(others, key=lambda contender: lags[contender].mean)]

    def lag(self, contender: int, leader: int) -> Lag:
        """Return by how much longer a contender takes than another, in the rounds that both ran in."""
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # it has no types

        ratios = [
            math.log(seconds[contender] / seconds[leader])
            for seconds in self._rounds
            if contender in seconds and leader in seconds
        ]
        if len(ratios) < 2:
            return Lag(math.expm1(sum(ratios)), -1.0, math.inf)
        look = self._looks_with[contender]
        level = self._risk / (2 * look * (look + 1) * self._rivals)
        mean, half = fmean(ratios), stdev(ratios) / math.sqrt(len(ratios))
        half *= -float(stdtrit(len(ratios) - 1, level))
        return Lag(*map(math.expm1, (mean, mean - half, mean + half)))
