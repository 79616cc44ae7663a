"""The variation of the seconds of works, between passes and inside a pass.

A slow phase of a machine affects all works of that time, so a makespan varies as one of them does. Variation between
works averages out over many. So the two are kept apart.

The next pass may lie outside of all measured passes. With nine passes or more, the k-th of n stands for the share k /
(n + 1) of all. With fewer, the deciles are taken from Student's t distribution for one more pass: sqrt(1 + 1 / n) times
as wide as the spread of the passes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipesched.profiles.costs.spread import spread_of

_SHOWING_TENTHS = 9
"""Least number of passes with one at each tenth."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Factors on the seconds of works, relative to their usual seconds.

    Attributes:
        passes: The least, nine deciles and the most of the factor that all works of a pass share.
        works: The least, nine deciles and the most of the factor of a single work, besides the factor of its pass.
    """

    passes: tuple[float, ...]
    works: tuple[float, ...]


def variation_of(
    passes: Sequence[Sequence[float]], usual: Callable[[Sequence[float]], float] = statistics.median
) -> Variation | None:
    """Return the variation of works.

    Args:
        passes: Seconds of the same works, in the same order, in each pass.
        usual: Returns the usual seconds of a work from all its samples; factors are relative to it.

    Returns:
        The variation, or None with fewer than two passes, or if nothing takes time.
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
