"""A training that fails at random, and continues from its last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.simulator.theory import daly_interval_s, expected_training_s, young_interval_s

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        """Young's checkpoint interval [s]."""
        return young_interval_s(self.fail_every_s, self.checkpoint_s)

    @property
    def daly_s(self) -> float:
        """Daly's checkpoint interval of higher order [s]."""
        return daly_interval_s(self.fail_every_s, self.checkpoint_s)

    def expected_s(self, interval_steps: int) -> float:
        """Return the expected seconds of a run with a checkpoint every `interval_steps`, in closed form."""
        return expected_training_s(
            self.step_s, self.num_steps, interval_steps, self.fail_every_s, self.restart_s, self.checkpoint_s
        )

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
