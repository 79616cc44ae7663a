"""A training that fails at random, and continues from its last checkpoint; the interval that leaves it most time.

Failures are exponential: M is the mean time between failures of the whole job. A checkpoint keeps training waiting for
delta, a restart takes R, tau is the time of the steps between two checkpoints. The interval follows from closed forms;
drawn runs show their spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.simulator import SimulationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COARSE, _FINE = 32, 16
"""Intervals of the curve over all lengths, and again around the best interval."""
_LONGEST = 2.0
"""Longest expected run on the curve, over the run with the best interval."""
_MOST_FAILURES = 5_000
"""Of a run with the best interval, which some seconds of drawing are enough for; ten times as many with another."""
_COUNTABLE = 1e9


@dataclass(frozen=True, slots=True)
class CheckpointedTraining:
    """A training of equal steps under failures whose distances are exponential.

    A run of it:

        steps, checkpoint, steps, che- failure, restart, steps, checkpoint, steps, checkpoint
        ------- kept ----------------  ------ lost ----  ------- kept -----------------------

    Attributes:
        step_s: Seconds of a step.
        num_steps: Number of steps; the last one is followed by a checkpoint, too.
        fail_every_s: Mean time between failures of the whole job [s], also while it restarts.
        restart_s: From a failure to the first step after it [s].
        checkpoint_s: Time that training waits for a checkpoint [s].
    """

    step_s: float
    num_steps: int
    fail_every_s: float
    restart_s: float
    checkpoint_s: float

    @property
    def work_s(self) -> float:
        """Seconds of all steps, each done once."""
        return self.step_s * self.num_steps

    @property
    def young_s(self) -> float:
        """Young's checkpoint interval, sqrt(2 delta M) [s] (Young, CACM 17(9), 1974)."""
        return math.sqrt(2 * self.checkpoint_s * self.fail_every_s)

    @property
    def daly_s(self) -> float:
        """Daly's checkpoint interval of higher order [s] (FGCS 22(3), 2006, equation 37).

        It is sqrt(2 delta M) (1 + x / 3 + x^2 / 9) - delta with x = sqrt(delta / (2 M)), and M where delta is 2 M or
        more.
        """
        if self.checkpoint_s >= 2 * self.fail_every_s:
            return self.fail_every_s
        x = math.sqrt(self.checkpoint_s / (2 * self.fail_every_s))
        return self.young_s * (1 + x / 3 + x**2 / 9) - self.checkpoint_s

    def expected_s(self, interval_steps: int) -> float:
        """Return the expected seconds of a run with a checkpoint every `interval_steps`; infinite beyond a float.

        Each interval takes M e^(R / M) (e^((tau + delta) / M) - 1) (Daly, FGCS 22(3), 2006, equation 20): failures come
        while steps are done, while a checkpoint is written and while the job restarts. The last interval has the
        remaining steps. It too ends with a checkpoint, which keeps the trained weights.
        """
        whole, left = divmod(self.num_steps, interval_steps)
        lost = whole * _expm1((interval_steps * self.step_s + self.checkpoint_s) / self.fail_every_s)
        if left:
            lost += _expm1((left * self.step_s + self.checkpoint_s) / self.fail_every_s)
        return self.fail_every_s * (1 + _expm1(self.restart_s / self.fail_every_s)) * lost

    def steps_in(self, interval_s: float) -> int:
        """Return how many steps, at least one and at most all, come nearest to an interval [s]."""
        return round(min(max(interval_s / self.step_s, 1), self.num_steps))

    def drawn_runs(self, intervals: Sequence[int], draws: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the seconds of runs, and how often each fails; both of shape (intervals, draws).

        Failures of a draw come at the same distances under every interval, so that intervals can be compared.

        Args:
            intervals: Steps between two checkpoints.
            draws: Runs under each interval.
            seed: Seed of the failures.
        """
        import numpy as np

        rng = np.random.default_rng(seed)
        steps = np.asarray(intervals, dtype=float)[:, np.newaxis]
        interval_s, last = steps * self.step_s + self.checkpoint_s, self.num_steps % steps
        last_s = np.where(last > 0, last * self.step_s + self.checkpoint_s, 0.0)
        left = np.repeat(self.num_steps // steps, draws, axis=1)  # whole intervals that are still to be done
        run_s, num_failures, is_under_way, restart_s = np.zeros_like(left), np.zeros_like(left), left > 0, 0.0
        while is_under_way.any():
            gap_s = rng.exponential(self.fail_every_s, draws)  # to the next failure
            needed_s = restart_s + left * interval_s + last_s
            fails = is_under_way & (gap_s < needed_s)
            run_s += np.where(is_under_way, np.where(fails, gap_s, needed_s), 0.0)
            num_failures += fails
            left -= np.where(fails, np.clip((gap_s - restart_s) // interval_s, 0.0, left), 0.0)
            is_under_way, restart_s = fails, self.restart_s
        return run_s, num_failures


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

    The best interval has the least expected seconds; no draw decides. Some of the intervals cover all lengths, and some
    are near the best. Intervals with which a run takes more than twice as long as with the best are left out.

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

    With n checkpoints, equal intervals take the least time, because the seconds of an interval are convex in its steps.
    So the best number of steps is num_steps / n, rounded up, for some n. Only about 2 sqrt(num_steps) of these numbers
    differ.
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


def _expm1(exponent: float) -> float:
    try:
        return math.expm1(exponent)
    except OverflowError:
        return math.inf
