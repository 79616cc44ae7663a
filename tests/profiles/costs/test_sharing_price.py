"""What sharing a core costs: between measured numbers of processes a straight line, and every second of work counts."""

from dataclasses import fields, replace

import pytest

from pipesched.profiles.costs import SharingPrice, StageCost, price_among, spread_of
from tests.profiles.hand_profiles import layer, measurement, profile, split


def price(num_processes, factor):
    return SharingPrice(num_processes, (factor,) * 11)


@pytest.mark.parametrize(("number", "factor"), [(1, 1.0), (2, 1.2), (3, 1.3), (4, 1.4), (5, 1.4), (256, 1.4)])
def test_between_what_was_measured_there_is_a_line_and_above_it_nothing_more(number, factor):
    assert price_among((price(2, 1.2), price(4, 1.4)), number) == pytest.approx(factor)


def test_the_line_begins_with_a_process_alone_and_without_a_price_there_is_none():
    assert [price_among((price(3, 1.5),), number) for number in (1, 2, 3)] == [1.0, 1.25, 1.5]
    assert price_among((), 4) == 1.0


def test_the_median_counts_but_noise_makes_nobody_faster():
    assert SharingPrice(2, spread_of([3.0, 1.0, 1.5]).deciles_s).factor == 1.5
    assert SharingPrice(2, spread_of([0.9, 0.8, 1.5]).deciles_s).factor == 1.0


def test_all_seconds_of_a_stage_are_as_much_longer_and_its_bytes_stay():
    layers = layer(measurement()), layer(measurement(split=split()))
    priced = replace(profile(*layers), sharing=(price(2, 1.5),))
    alone, shared = (priced.costs_of_layers([(0, 1), (1, 2)], 1, number).stages for number in (1, 2))
    assert alone == profile(*layers).costs_of_layers([(0, 1), (1, 2)], 1, 2).stages
    for before, after in zip(alone, shared, strict=True):
        for field in fields(StageCost):
            was, now = getattr(before, field.name), getattr(after, field.name)
            assert now == (1.5 * was if field.name.endswith("_s") and was is not None else was), field.name
