"""Goodput under failures against Daly's model: M e^(R/M) (e^((tau + delta)/M) - 1) for each interval."""

from dataclasses import replace
from math import ceil, exp, sqrt
from random import Random

import pytest

from pipesched.simulator import SimulationError
from pipesched.simulator.failures import CheckpointedTraining, interval_goodputs, search_interval

DRAWS = 1000
OFTEN = CheckpointedTraining(step_s=10.0, num_steps=960, fail_every_s=600.0, restart_s=200.0, checkpoint_s=30.0)
SELDOM = CheckpointedTraining(step_s=1.0, num_steps=20_000, fail_every_s=10_800.0, restart_s=120.0, checkpoint_s=20.0)


def by_daly_s(training, interval):
    """Return the expected seconds of a run whose steps come out even."""
    m, tau = training.fail_every_s, interval * training.step_s
    interval_s = m * exp(training.restart_s / m) * (exp((tau + training.checkpoint_s) / m) - 1)
    return interval_s * training.num_steps / interval


@pytest.mark.parametrize("training", [OFTEN, SELDOM])
def test_drawn_runs_take_as_long_as_the_closed_form_says_within_their_standard_error(training):
    points = interval_goodputs(training, [10, 80, 160], DRAWS)
    for point in points:
        expected_s = by_daly_s(training, point.interval_steps)
        assert training.expected_s(point.interval_steps) == pytest.approx(expected_s)
        assert point.run_s == pytest.approx(expected_s)
        assert abs(point.drawn_s - expected_s) < 3 * point.error_s < 0.05 * expected_s
        assert point.goodput == pytest.approx(training.work_s / expected_s)
        assert point.low < point.goodput < point.high


def test_failures_come_as_often_as_they_are_said_to():
    (point,) = interval_goodputs(OFTEN, [7], DRAWS)  # which leaves a shorter last interval
    assert point.num_failures == pytest.approx(point.drawn_s / OFTEN.fail_every_s, rel=0.01)
    assert abs(point.drawn_s - OFTEN.expected_s(7)) < 3 * point.error_s


@pytest.mark.parametrize("training", [OFTEN, SELDOM])
def test_the_curve_goes_through_the_best_interval_from_short_to_long(training):
    best, curve = search_interval(training, 2)
    steps = [point.interval_steps for point in curve]
    assert max(curve, key=lambda point: point.goodput).interval_steps == best
    assert steps == sorted(set(steps))
    assert steps[0] < best < steps[-1]


def by_intervals_s(training, interval):
    """Return the expected seconds of a run, one interval after the other; the last one may be shorter."""
    m, seconds, left = training.fail_every_s, 0.0, training.num_steps
    while left:
        steps = min(interval, left)
        seconds += m * exp(training.restart_s / m) * (exp((steps * training.step_s + training.checkpoint_s) / m) - 1)
        left -= steps
    return seconds


def test_no_interval_takes_less_than_the_best():
    rng = Random(0)
    for _ in range(150):
        fail_every_s, checkpoint_s = rng.uniform(50, 5000), rng.choice([0.0, 0.5, 20.0])
        training = CheckpointedTraining(rng.uniform(0.5, 20), rng.randint(1, 300), fail_every_s, 10.0, checkpoint_s)
        best, _ = search_interval(training, 2)
        least_s = min(by_intervals_s(training, interval) for interval in range(1, training.num_steps + 1))
        assert by_intervals_s(training, best) == pytest.approx(least_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_interval_of_a_long_training_solves_the_condition_of_daly_whatever_the_seed(seed):
    """The least of (e^((tau + delta) / M) - 1) / tau is where e^((tau + delta) / M) (1 - tau / M) = 1."""
    training = CheckpointedTraining(48.0, 400_000, 172_800.0, 120.0, 67.0)
    low_s, high_s = 0.0, training.fail_every_s
    while high_s - low_s > 1e-6:
        tau_s = (low_s + high_s) / 2
        slope = exp((tau_s + training.checkpoint_s) / training.fail_every_s) * (1 - tau_s / training.fail_every_s) - 1
        low_s, high_s = (tau_s, high_s) if slope > 0 else (low_s, tau_s)
    assert abs(search_interval(training, 3, seed)[0] - low_s / training.step_s) <= 1


def test_young_and_daly_come_near_the_best_where_failures_are_rare():
    least_s = min(by_daly_s(SELDOM, interval) for interval in range(1, 5000))
    assert SELDOM.young_s == pytest.approx(sqrt(2 * 20 * 10_800))
    for interval_s in (SELDOM.young_s, SELDOM.daly_s):
        assert by_daly_s(SELDOM, SELDOM.steps_in(interval_s)) < 1.001 * least_s
    assert replace(SELDOM, fail_every_s=10.0, checkpoint_s=20.0).daly_s == 10.0


def test_without_failures_only_checkpoints_cost_time():
    training = CheckpointedTraining(2.0, 100, 1e15, 5.0, 3.0)
    for point in interval_goodputs(training, [1, 30, 100], 2):
        assert point.drawn_s == 200 + 3 * ceil(100 / point.interval_steps)
        assert point.run_s == pytest.approx(point.drawn_s)
        assert point.num_failures == 0
    assert search_interval(training, 2)[0] == 100


@pytest.mark.parametrize(("fail_every_s", "told"), [(0.01, "no end of failures"), (8.0, "about 21,624 failures")])
def test_what_would_never_be_over_is_refused(fail_every_s, told):
    training = CheckpointedTraining(1.0, 100_000, fail_every_s, 0.0, 1.0)
    with pytest.raises(SimulationError, match=f"a training of 100000 steps with a checkpoint every .*: got {told}"):
        search_interval(training, 2)
    with pytest.raises(SimulationError, match="checkpoint every 100000: got no end of failures"):
        interval_goodputs(training, [100_000], 2)
