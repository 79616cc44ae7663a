"""The pace of pipelines that drift apart, from longer and longer runs until it is known well enough.

    iterations begin together    ....|....|....|....|....|....|....|....      the first half does not count, the second
                                          half    1   2   3   4   5   6      is cut into windows: work done in each

The spread of the windows shows how well a run knows its pace. It does not show whether the pipelines have drifted as
far as they will: so a run twice as long must have the same pace. Nothing is quicker than the busiest device or link,
and pipelines that begin together only get better as they drift. So the pace is known if a short run reaches that bound,
and its windows agree: few micro-batches may be as quick for a while only.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

Run: TypeAlias = Callable[[int], Sequence[Sequence[float]]]
"""From a number of iterations to when each is over, for each pipeline [s]."""

WELL_ENOUGH = 0.01
"""The error at which a pace is known, as a share of it."""
_NUM_WINDOWS = 12
_LEAST = 4
_WORKS, _MOST_WORKS = 12_000, 500_000
"""Works of the shortest run and of the longest, but for lists of which few iterations are as many."""
_OF_DIFFERENCE = 3**0.5
"""Ratio of the difference from a run of half the length to the error of a run; the variance of the half is double."""


class Pace(NamedTuple):
    """The seconds of an iteration in the long run.

    Attributes:
        seconds: Time in which every pipeline does a batch [s].
        error: Relative error of `seconds`: the standard error of the last run, by its windows or by its difference
            from a run of half its length; or the excess over the lower bound.
    """

    seconds: float
    error: float


def drifting_pace(run: Run, num_works: int, least_s: float) -> Pace:
    """Run pipelines for more and more iterations until the mean time per micro-batch is known.

    Args:
        run: Runs the pipelines for a number of iterations, with ops that vary.
        num_works: Works of all pipelines in an iteration.
        least_s: Work of the busiest device or link in an iteration of all pipelines [s].
    """
    iterations = max(_LEAST, round(_WORKS / max(1, num_works)))
    earlier_s = None
    while True:
        seconds, error = _measured(run(iterations))
        if seconds <= least_s * (1 + WELL_ENOUGH) and error <= WELL_ENOUGH:
            return Pace(max(seconds, least_s), WELL_ENOUGH)
        if earlier_s is not None:
            error = max(error, abs(seconds / earlier_s - 1) / _OF_DIFFERENCE)
            if error <= WELL_ENOUGH or 2 * iterations * num_works > max(_MOST_WORKS, 4 * _LEAST * num_works):
                return Pace(seconds, error)
        earlier_s, iterations = seconds, 2 * iterations


def _measured(ends_s: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the pace of a run [s] and its standard error, as a share of it."""
    counted = len(ends_s[0]) // 2
    from_s = min(ends[counted - 1] for ends in ends_s)
    until_s = min(ends[-1] for ends in ends_s)  # after that the others have the devices for themselves
    window_s = (until_s - from_s) / _NUM_WINDOWS
    done = [sum(_done(ends, from_s + k * window_s) for ends in ends_s) for k in range(_NUM_WINDOWS + 1)]
    rates = [after - before for before, after in pairwise(done)]
    mean = statistics.fmean(rates)
    if mean <= 0:  # nothing takes time
        return 0.0, 0.0
    error = 0.0
    while len(rates) > 2:  # windows that follow one another are alike, so wider ones may spread more
        error = max(error, statistics.stdev(rates) / statistics.fmean(rates) / len(rates) ** 0.5)
        rates = [first + second for first, second in zip(rates[::2], rates[1::2], strict=False)]
    return len(ends_s) * window_s / mean, error


def _done(ends_s: Sequence[float], now_s: float) -> float:
    """Return the number of finished iterations of a pipeline at a time, plus the fraction of the current one."""
    whole = bisect_right(ends_s, now_s)
    if whole == len(ends_s):
        return whole
    begin_s = ends_s[whole - 1] if whole else 0.0
    return whole + (now_s - begin_s) / (ends_s[whole] - begin_s)
