"""Trainings under random failures: the expected time of one with checkpoints, and the intervals that make it short.

Failures are exponential: M is the mean time between failures of the whole job. A checkpoint keeps training waiting for
delta, a restart takes R, tau is the time of the steps between two checkpoints.
"""

from __future__ import annotations

import math


def young_interval_s(fail_every_s: float, checkpoint_s: float) -> float:
    """Return sqrt(2 delta M) [s] (Young, CACM 17(9), 1974)."""
    return math.sqrt(2 * checkpoint_s * fail_every_s)


def daly_interval_s(fail_every_s: float, checkpoint_s: float) -> float:
    """Return Daly's interval of higher order [s] (FGCS 22(3), 2006, equation 37).

    It is sqrt(2 delta M) (1 + x / 3 + x^2 / 9) - delta with x = sqrt(delta / (2 M)), and M where delta is 2 M or more.
    """
    if checkpoint_s >= 2 * fail_every_s:
        return fail_every_s
    x = math.sqrt(checkpoint_s / (2 * fail_every_s))
    return young_interval_s(fail_every_s, checkpoint_s) * (1 + x / 3 + x**2 / 9) - checkpoint_s


def expected_training_s(
    step_s: float, num_steps: int, interval_steps: int, fail_every_s: float, restart_s: float, checkpoint_s: float
) -> float:
    """Return the expected seconds of a training; infinite where they are more than a float holds.

    Each interval takes M e^(R / M) (e^((tau + delta) / M) - 1) (Daly, FGCS 22(3), 2006, equation 20): failures come
    while steps are done, while a checkpoint is written and while the job restarts. The last one has the steps that are
    left, and a checkpoint too: the weights that training was for.
    """
    whole, left = divmod(num_steps, interval_steps)
    lost = whole * _expm1((interval_steps * step_s + checkpoint_s) / fail_every_s)
    if left:
        lost += _expm1((left * step_s + checkpoint_s) / fail_every_s)
    return fail_every_s * (1 + _expm1(restart_s / fail_every_s)) * lost


def _expm1(exponent: float) -> float:
    try:
        return math.expm1(exponent)
    except OverflowError:
        return math.inf
