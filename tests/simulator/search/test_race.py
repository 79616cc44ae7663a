"""Races over synthetic times whose best is known: it is named, or nothing is said, and large gaps are seen early."""

import math
from statistics import fmean

import numpy as np
import pytest

from pipesched.simulator.search import Lag, Race

MOST_ROUNDS = 48
NUM_RACES = 100


def run_race(true_s, noise, rng, drift=0.0):
    """Race contenders of these seconds, with lognormal noise, on a machine that gets slower from round to round."""
    race = Race(len(true_s))
    num_runs = 0
    while not race.is_over and race.num_rounds < MOST_ROUNDS:
        for _ in range(race.slice_rounds):
            slow = 1.0 + drift * race.num_rounds
            race.add({c: slow * true_s[c] * math.exp(rng.normal(0.0, noise)) for c in race.running})
            num_runs += len(race.running)
        race.look()
    return race, num_runs


def races(true_s, noise, drift=0.0):
    """Run many races; return how often another than the first was named, how often the first, and the mean of runs."""
    best = int(np.argmin(true_s))
    done = [run_race(true_s, noise, np.random.default_rng(seed), drift) for seed in range(NUM_RACES)]
    named = [race.staying[0] for race, _ in done if race.is_over]
    return sum(c != best for c in named), sum(c == best for c in named), fmean(num_runs for _, num_runs in done)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("true_s", "noise"), [((1.03, 1.0, 1.06, 1.1, 1.5), 0.1), ((1.01, 1.001, 1.0), 0.3), ((1.2, 1.0), 0.3)], ids=str
)
def test_the_best_is_named_or_nothing_is_said_in_95_of_100_races(true_s, noise):
    wrong, _, _ = races(true_s, noise)
    assert wrong <= 0.05 * NUM_RACES


def test_equal_contenders_are_seldom_told_apart():
    """Of two that take the same, naming either is wrong: the worst that can be asked of looking again and again."""
    done = [run_race((1.0, 1.0), 0.2, np.random.default_rng(seed)) for seed in range(NUM_RACES)]
    chance = 2 * math.sqrt(0.05 * 0.95 / NUM_RACES)  # two standard errors
    assert sum(race.is_over for race, _ in done) / NUM_RACES <= 0.05 + chance


def test_the_larger_the_gap_the_earlier_the_race_is_over():
    runs = {gap: races((1.0, 1.0 + gap, 1.0 + 2 * gap), 0.1) for gap in (0.1, 0.5, 2.0)}
    assert runs[0.1][2] > 1.5 * runs[0.5][2] > 1.5 * runs[2.0][2]
    assert runs[0.5][1] >= 0.95 * NUM_RACES
    assert runs[2.0][2] < 15


def test_the_drift_of_the_machine_cancels():
    steady, drifting = (races((1.0, 1.15, 1.3), 0.1, drift) for drift in (0.0, 0.1))
    assert drifting == steady


def test_without_noise_one_slice_is_enough():
    race, num_runs = run_race((1.2, 1.0, 1.5), 0.0, np.random.default_rng(0))
    assert (race.staying, num_runs) == ((1,), 9)
    assert race.lag(0, 1) == Lag(*[pytest.approx(0.2)] * 3)


def test_the_interval_is_students_with_its_level_shared_among_rivals_and_looks():
    race = Race(3)
    for ratio in (1.0, 1.1, 1.21):
        race.add({0: 2.0, 1: 2.0 * ratio, 2: 2.0})
    # 0.05 / 2 sides / 2 rivals / (1 * 2) of the first look: t(2 degrees, 0.00625) = 8.8602 (tables: 0.005 is 9.925)
    half = 8.8602 * math.log(1.1) / math.sqrt(3)
    lag = race.lag(1, 0)
    assert (lag.mean, lag.high) == pytest.approx((0.1, 1.1 * math.exp(half) - 1), rel=1e-4)
    assert lag.low == pytest.approx(1.1 * math.exp(-half) - 1, rel=1e-4)
    assert not lag.is_clear


def test_one_round_has_no_interval():
    race = Race(2)
    race.add({0: 1.0, 1: 9.0})
    race.look()
    assert race.staying == (0, 1)
    assert race.lag(1, 0).to_dict() == {"mean": pytest.approx(8.0), "low": None, "high": None}


def test_the_nearest_half_runs_on_and_the_others_come_back():
    race = Race(5)
    assert race.running == (0, 1, 2, 3, 4)
    for noise in (0.7, 1.0, 1.4):
        race.add({0: 1.0, 1: 1.3 * noise, 2: 1.1 * noise, 3: 1.2 * noise, 4: 1.4 * noise})
    race.look()
    assert race.staying == (0, 2, 3, 1, 4)
    assert (race.running, race.slice_rounds) == ((0, 2, 3), 3)
    for _ in range(9):
        race.add({0: 1.0, 2: 2.0, 3: 2.0})
    race.look()
    assert set(race.running) == {0, *race.staying[1:2]}
    assert race.slice_rounds == 12


def test_who_cannot_be_run_is_out():
    race = Race(2)
    race.withdraw(0)
    assert race.is_over
    assert race.staying == race.running == (1,)
