"""The spread of measured seconds: mean, median and deciles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of measured seconds: their number, mean and deciles.

    Attributes:
        count: Number of measurements, at least 1.
        mean_s: The mean [s], for sums of many.
        deciles_s: The least, the nine deciles, and the most [s], rising; the sixth is the median.
    """

    count: int
    mean_s: float
    deciles_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median [s]."""
        return self.deciles_s[5]

    @property
    def trimmed_s(self) -> float:
        """The mean of the middle six tenths, estimated from the deciles [s]."""
        cuts_s = self.deciles_s[2:9]
        mean_s = statistics.fmean((low_s + high_s) / 2 for low_s, high_s in pairwise(cuts_s))
        return min(max(mean_s, cuts_s[0]), cuts_s[-1])  # roundings aside, it lies between them


def spread_of(seconds: Sequence[float]) -> Spread:
    """Return the spread of at least one measurement [s], with linear interpolation between two neighbours."""
    if len(seconds) == 1:
        return Spread(1, seconds[0], tuple(seconds) * 11)
    cuts = statistics.quantiles(seconds, n=10, method="inclusive")
    least_s, most_s = min(seconds), max(seconds)
    mean_s = min(max(statistics.fmean(seconds), least_s), most_s)  # roundings aside, it lies between them
    return Spread(len(seconds), mean_s, tuple(sorted((least_s, *cuts, most_s))))  # again, roundings aside
