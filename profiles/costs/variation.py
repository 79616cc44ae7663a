"""The variation of the seconds of works, from pass to pass and inside one.

A machine that is slower for some seconds is so for all works of that time: a makespan then varies as one of them does.
What varies from work to work averages out over many. So the two are told apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.profiles.costs.spread import spread_of


@dataclass(frozen=True, slots=True)
class Variation:
    """Factors on the seconds of works, relative to their medians.

    Attributes:
        passes: The least, nine deciles and the most of the factor that all works of a pass share.
        works: The least, nine deciles and the most of the factor of a single work, besides that of its pass.
    """

    passes: tuple[float, ...]
    works: tuple[float, ...]


def variation_of(passes: Sequence[Sequence[float]]) -> Variation | None:
    """Return how works vary.

    Args:
        passes: Seconds of the same works, in the same order, in each pass.

    Returns:
        None where fewer than two passes were measured, or nothing takes time.
    """
    medians_s = [statistics.median(column) for column in zip(*passes, strict=True)]
    total_s = math.fsum(medians_s)
    if len(passes) < 2 or not total_s:
        return None
    factors = [math.fsum(row) / total_s for row in passes]
    works = [
        seconds / (median_s * factor)
        for row, factor in zip(passes, factors, strict=True)
        for seconds, median_s in zip(row, medians_s, strict=True)
        if median_s and factor
    ]
    return Variation(spread_of(factors).deciles_s, spread_of(works).deciles_s)
