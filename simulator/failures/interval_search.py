"""The checkpoint interval that leaves a training most of its time, by a closed form, and the spread of drawn runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.simulator import SimulationError
from pipesched.simulator.failures.checkpointed_training import CheckpointedTraining

_COARSE, _FINE = 32, 16
"""Intervals of the curve over all lengths, and again around the best interval."""
_LONGEST = 2.0
"""Longest expected run on the curve, over the run with the best interval."""
_MOST_FAILURES = 5_000
"""Of a run with the best interval, which some seconds of drawing are enough for; ten times as many with another."""
_COUNTABLE = 1e9


@dataclass(frozen=True, slots=True)
class IntervalGoodput:
    """The goodput of a training under a checkpoint interval.

    Attributes:
        interval_steps: Steps between two checkpoints.
        goodput: Seconds of all steps, each done once, over `run_s`.
        low: A tenth of the drawn runs has a lower goodput.
        high: A tenth of the drawn runs has a higher goodput.
        run_s: Expected seconds of a run, in closed form.
        drawn_s: Mean seconds of the drawn runs.
        error_s: Standard error of `drawn_s`.
        num_failures: Mean number of failures of the drawn runs.
    """

    interval_steps: int
    goodput: float
    low: float
    high: float
    run_s: float
    drawn_s: float
    error_s: float
    num_failures: float


def interval_goodputs(
    training: CheckpointedTraining, intervals: Sequence[int], draws: int, seed: int = 0
) -> list[IntervalGoodput]:
    """Return the goodput of each interval, over the same draws of failures.

    Args:
        training: The training.
        intervals: Steps between two checkpoints.
        draws: Runs under each interval, two or more.
        seed: Seed of the failures.

    Raises:
        SimulationError: A run fails too often to be drawn, or is never over.
    """
    import numpy as np

    for interval in intervals:
        _require_few(training, interval, 10 * _MOST_FAILURES)
    if not intervals:
        return []
    work_s, (run_s, num_failures) = training.work_s, training.drawn_runs(intervals, draws, seed)
    lows, highs = np.percentile(work_s / run_s, [10, 90], axis=1)
    means_s, errors_s = run_s.mean(axis=1), run_s.std(axis=1, ddof=1) / draws**0.5
    return [
        IntervalGoodput(
            interval,
            work_s / training.expected_s(interval),
            float(lows[index]),
            float(highs[index]),
            training.expected_s(interval),
            float(means_s[index]),
            float(errors_s[index]),
            float(num_failures[index].mean()),
        )
        for index, interval in enumerate(intervals)
    ]


def search_interval(
    training: CheckpointedTraining, draws: int, seed: int = 0
) -> tuple[int, tuple[IntervalGoodput, ...]]:
    """Return the best checkpoint interval [steps], and the goodput over intervals, from short to long.

    The best interval has the least expected seconds; no draw decides. Of the intervals, some have all lengths,
    and some are near the best. Intervals with which a run takes more than twice as long as with the best are left out.

    Args:
        training: The training.
        draws: Runs under each interval, two or more.
        seed: Seed of the failures.

    Raises:
        SimulationError: A run fails too often to be drawn, or is never over.
    """
    best = _best(training)
    _require_few(training, best, _MOST_FAILURES)
    coarse = _between(1, training.num_steps, _COARSE)
    finer = _between(
        max((steps for steps in coarse if steps < best), default=best),
        min((steps for steps in coarse if steps > best), default=best),
        _FINE,
    )
    longest_s = _LONGEST * training.expected_s(best)
    tried = [steps for steps in sorted({*coarse, *finer, best}) if training.expected_s(steps) <= longest_s]
    return best, tuple(interval_goodputs(training, tried, draws, seed))


def _best(training: CheckpointedTraining) -> int:
    """Return the steps between two checkpoints with which a run is expected to take the least seconds.

    With n checkpoints, equal intervals take the least, as the seconds of an interval are convex in its steps. So one
    of num_steps / n, rounded up, is the best: about twice the root of num_steps of them differ.
    """
    root = math.isqrt(training.num_steps)
    equal = {-(-training.num_steps // count) for count in range(1, root + 1)}
    best: int = min(sorted({*range(1, root + 2), *equal}), key=training.expected_s)
    return best


def _between(first: int, last: int, count: int) -> list[int]:
    """Return whole numbers from `first` to `last`, each about as many times the one before it, without repetition."""
    ratio = (last / first) ** (1 / (count - 1))
    return sorted({min(round(first * ratio**index), last) for index in range(count)})


def _require_few(training: CheckpointedTraining, interval: int, most: int) -> None:
    num_failures = training.expected_s(interval) / training.fail_every_s
    if num_failures > most:
        count = f"about {num_failures:,.0f} failures" if num_failures < _COUNTABLE else "no end of failures"
        raise SimulationError(
            f"a training of {training.num_steps} steps with a checkpoint every {interval}: got {count}, expected at "
            f"most {most:,}; try a smaller `num_steps`, or a larger `fail_every_s`"
        )
