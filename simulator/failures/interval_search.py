"""The search of the checkpoint interval that leaves a training most of its time, over drawn runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.simulator import SimulationError
from pipesched.simulator.failures.checkpointed_training import CheckpointedTraining

_COARSE, _FINE = 32, 16
"""Intervals that are tried over all lengths, and again between the neighbours of the best of them."""
_LONGEST = 2.0
"""How many times as long as with the best interval a run may be expected to take for its interval to be drawn."""
_MOST_FAILURES = 5_000
"""Of a run with the best interval, which some seconds of drawing are enough for; ten times as many with another."""
_COUNTABLE = 1e9


@dataclass(frozen=True, slots=True)
class IntervalGoodput:
    """What a checkpoint interval leaves of the time of a training.

    Attributes:
        interval_steps: Steps between two checkpoints.
        goodput: Seconds of all steps, each done once, over the mean seconds of a run.
        low: A tenth of the runs has a lower goodput.
        high: A tenth of the runs has a higher one.
        expected: The goodput by the closed form of a run's seconds.
        run_s: Mean seconds of a run.
        error_s: Standard error of `run_s`.
        num_failures: Mean number of failures of a run.
    """

    interval_steps: int
    goodput: float
    low: float
    high: float
    expected: float
    run_s: float
    error_s: float
    num_failures: float


def interval_goodputs(
    training: CheckpointedTraining, intervals: Sequence[int], draws: int, seed: int = 0
) -> list[IntervalGoodput]:
    """Return what each interval leaves of the time, over the same draws of failures.

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
            work_s / float(means_s[index]),
            float(lows[index]),
            float(highs[index]),
            work_s / training.expected_s(interval),
            float(means_s[index]),
            float(errors_s[index]),
            float(num_failures[index].mean()),
        )
        for index, interval in enumerate(intervals)
    ]


def search_interval(training: CheckpointedTraining, draws: int, seed: int = 0) -> tuple[IntervalGoodput, ...]:
    """Return the goodput over checkpoint intervals, from short to long; the best of them has the highest.

    First intervals of all lengths are drawn, then those around the best of them. Intervals with which a run is
    expected to take more than twice as long as it must are left out.

    Args:
        training: The training.
        draws: Runs under each interval, two or more.
        seed: Seed of the failures.

    Raises:
        SimulationError: A run fails too often to be drawn, or is never over.
    """
    tried = _between(1, training.num_steps, _COARSE)
    expected_s = {interval: training.expected_s(interval) for interval in tried}
    best = min(tried, key=expected_s.__getitem__)
    _require_few(training, best, _MOST_FAILURES)
    tried = [interval for interval in tried if expected_s[interval] <= _LONGEST * expected_s[best]]
    curve = interval_goodputs(training, tried, draws, seed)
    index = curve.index(max(curve, key=lambda point: point.goodput))
    finer = _between(tried[max(0, index - 1)], tried[min(index + 1, len(tried) - 1)], _FINE)
    curve += interval_goodputs(training, [interval for interval in finer if interval not in tried], draws, seed)
    return tuple(sorted(curve, key=lambda point: point.interval_steps))


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
