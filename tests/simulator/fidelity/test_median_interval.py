"""Medians and their bootstrap intervals, where they are known without drawing."""

import random

from pipesched.simulator.fidelity import MedianInterval, median_interval


def test_the_median_of_three_is_any_of_them_often_enough_to_be_in_the_interval():
    # each end is the median of three draws with probability 7/27, far more than 2.5 %
    assert median_interval([3.0, 1.0, 2.0]) == MedianInterval(2.0, 1.0, 3.0)


def test_the_interval_holds_the_median_about_as_often_as_it_says():
    rng, held, runs = random.Random(0), 0, 200
    for _ in range(runs):
        interval = median_interval([rng.gauss(0.0, 1.0) for _ in range(15)])
        held += interval.low <= 0.0 <= interval.high
    assert 0.88 <= held / runs <= 0.98
