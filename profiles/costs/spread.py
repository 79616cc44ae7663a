"""The spread of measured seconds, their variation between runs, and the price of sharing a core.

A slow phase of a machine slows all ops of this time, so a makespan varies by the same factor. The variation between
single ops averages out over many ops. So `Variation` keeps one factor for a pass and one for an op.

The next pass may lie outside of all measured passes. With nine passes or more, the k-th of n in rising order is the
quantile k / (n + 1). With fewer, the deciles come from Student's t distribution for one more pass, which is sqrt(1 +
1 / n) times as wide as the spread of the passes.

Processes on one core take turns: two processes take twice as long. They take even longer, because each process finds
the caches full of data of the others and every switch takes time. The price is this second factor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, TypeAlias

from annotated_types import Ge, Len, Lt, Predicate

from pipesched.schedules.common import PositiveCount, Seconds


def _rises(numbers: Sequence[float]) -> bool:
    return list(numbers) == sorted(numbers)


Deciles: TypeAlias = Annotated[tuple[Seconds, ...], Len(11, 11), Predicate(_rises)]
"""The least, the nine deciles, and the most, rising."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of measured seconds: their number, mean and deciles.

    Attributes:
        count: Number of measurements, at least 1.
        mean_s: The mean [s], for sums over many ops.
        deciles_s: The least, the nine deciles, and the most [s], rising; the sixth is the median.
    """

    count: PositiveCount
    mean_s: Seconds
    deciles_s: Deciles

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


_SHOWING_TENTHS = 9
"""Least number of passes that have nine deciles of their own."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Factors on the seconds of ops, relative to their usual seconds.

    Attributes:
        passes: The least, nine deciles and the most of the factor that all ops of a pass share.
        works: The least, nine deciles and the most of the factor of a single op, besides the factor of its pass.
    """

    passes: Deciles
    works: Deciles


def variation_of(
    passes: Sequence[Sequence[float]], usual: Callable[[Sequence[float]], float] = statistics.median
) -> Variation | None:
    """Return the variation of ops.

    Args:
        passes: Seconds of the same ops, in the same order, in each pass.
        usual: Returns the usual seconds of an op from all its samples; factors are relative to them.

    Returns:
        The variation, or None with fewer than two passes, or if no op takes time.
    """
    usual_s = [usual(column) for column in zip(*passes, strict=True)]
    total_s = math.fsum(usual_s)
    if len(passes) < 2 or not total_s:
        return None
    factors = [math.fsum(row) / total_s for row in passes]
    works = [
        seconds / (work_s * factor)
        for row, factor in zip(passes, factors, strict=True)
        for seconds, work_s in zip(row, usual_s, strict=True)
        if work_s and factor
    ]
    cuts = [max(0.0, cut) for cut in _next_deciles(factors)]
    least, most = min(cuts[0], *factors), max(cuts[-1], *factors)
    return Variation(tuple(sorted((least, *cuts, most))), spread_of(works).deciles_s)


def _next_deciles(factors: Sequence[float]) -> list[float]:
    """Return the nine expected deciles of one more pass."""
    count = len(factors)
    if count >= _SHOWING_TENTHS:
        return statistics.quantiles(factors, n=10, method="exclusive")
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # it has no types

    mean, width = statistics.fmean(factors), statistics.stdev(factors) * math.sqrt(1 + 1 / count)
    return [mean + width * float(stdtrit(count - 1, tenth / 10)) for tenth in range(1, 10)]


@dataclass(frozen=True, slots=True)
class SharingPrice:
    """The slowdown of a given number of processes on one core.

    Attributes:
        num_processes: Processes that compute on the core, at least 2.
        factors: The least, nine deciles and the most of a ratio: the processor time of a pass among these processes
            over the processor time of a pass alone.
    """

    num_processes: Annotated[int, Ge(2), Lt(2**31)]
    factors: Deciles

    @property
    def factor(self) -> float:
        """The median, but at least 1: smaller values are noise, because sharing makes no pass faster."""
        return max(1.0, self.factors[5])


def price_among(prices: Sequence[SharingPrice], num_processes: int) -> float:
    """Return the factor on the time of work among `num_processes`.

    The factor is linear between two measured numbers, starting from 1 for a process alone, and constant above the
    largest.

    Args:
        prices: Prices by rising number of processes; without any, sharing is free.
        num_processes: Processes that share the core, at least 1.
    """
    below, factor_below = 1, 1.0
    for price in prices:
        if num_processes <= price.num_processes:
            share = (num_processes - below) / (price.num_processes - below)
            return factor_below + share * (price.factor - factor_below)
        below, factor_below = price.num_processes, price.factor
    return factor_below
