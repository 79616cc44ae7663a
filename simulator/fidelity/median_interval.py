"""The median of a few measurements, and its interval of uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median, and the interval with 95 % of the medians of bootstrap samples, each as large as the data."""

    median: float
    low: float
    high: float

    @property
    def furthest(self) -> float:
        """The end of the interval that is further from 0, without its sign."""
        return max(abs(self.low), abs(self.high))

    def to_dict(self) -> dict[str, float]:
        """Return plain data."""
        return {"median": self.median, "low": self.low, "high": self.high}


def median_interval(values: Sequence[float], seed: int = 0) -> MedianInterval:
    """Return the median of at least one value with its bootstrap interval (Efron, 1979), percentiles of the draws.

    Args:
        values: Independent of each other, as of rounds.
        seed: Seed of the draws.
    """
    import numpy as np

    draws = np.random.default_rng(seed).choice(np.asarray(values), (_DRAWS, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return MedianInterval(float(np.median(values)), float(low), float(high))
