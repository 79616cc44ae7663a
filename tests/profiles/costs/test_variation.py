"""How seconds vary: the factor of a pass told apart from those of its works."""

import statistics

import numpy as np
import pytest

from pipesched.profiles.costs import variation_of


def test_passes_that_are_slower_as_a_whole_leave_nothing_to_single_works():
    variation = variation_of([(1.0 * factor, 2.0 * factor) for factor in (0.5, 1.0, 1.5)])
    assert variation.passes[5] == pytest.approx(1.0)
    assert variation.works == pytest.approx((1.0,) * 11)


def test_works_that_make_up_for_each_other_leave_nothing_to_passes():
    variation = variation_of([(0.9, 1.1), (1.1, 0.9), (1.0, 1.0)])
    assert variation.passes == pytest.approx((1.0,) * 11)
    assert (variation.works[0], variation.works[-1]) == pytest.approx((0.9, 1.1))


def test_the_kth_of_n_passes_stands_for_the_share_k_of_n_plus_1():
    variation = variation_of([(factor,) for factor in (0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.1, 1.2, 1.3)])
    assert variation.passes == pytest.approx((0.7, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.3))


def test_few_passes_leave_room_for_one_more_outside_of_them():
    # the table of Student's t: 0.9 of its values with 2 degrees of freedom lie below 1.886, with 4 below 1.533
    three = variation_of([(factor,) for factor in (0.75, 1.0, 1.25)])
    assert three.passes[9] == pytest.approx(1.0 + 1.886 * 0.25 * (4 / 3) ** 0.5, abs=1e-3)
    five = variation_of([(factor,) for factor in (0.8, 0.9, 1.0, 1.1, 1.2)])
    assert five.passes[1] == pytest.approx(1.0 - 1.533 * 0.025**0.5 * 1.2**0.5, abs=1e-3)


def test_four_fifths_of_next_passes_lie_between_the_outer_deciles_of_few():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(1000):
        *seen, following = rng.normal(100.0, 10.0, 5)
        passes, usual_s = (
            variation_of([(seconds,) for seconds in seen], statistics.fmean).passes,
            statistics.fmean(seen),
        )
        inside += passes[1] * usual_s <= following <= passes[9] * usual_s
    assert 760 <= inside <= 840  # three standard deviations of 1000 throws are 38


def test_factors_are_relative_to_what_is_usual():
    assert variation_of([(1.0,), (2.0,), (6.0,)], statistics.fmean).passes[5] == pytest.approx(1.0)
    assert variation_of([(1.0,), (2.0,), (6.0,)], statistics.median).passes[5] == pytest.approx(1.5)


def test_one_pass_and_works_of_no_time_say_nothing():
    assert variation_of([(1.0, 2.0)]) is None
    assert variation_of([(0.0,), (0.0,)]) is None
