from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import SharingPrice, StageCost, layer_profile, median_profile, price_among, spread_of
from pipesched.profiles.costs.measurement import saved_bytes
from tests.profiles.hand_profiles import layer, measurement, profile, split


def test_a_stage_costs_the_sum_of_its_layers():
    costs = profile(layer(), layer(), layer()).costs_of_layers([(0, 2), (2, 3)], 1)
    assert costs.microbatch_size == 1
    first, second = costs.stages
    assert (first.forward_s, first.backward_s, first.step_s) == (2.0, 4.0, 1.0)
    assert (first.weight_bytes, first.optimizer_bytes, first.output_bytes) == (16, 32, 10)
    assert (second.forward_s, second.backward_s) == (1.0, 2.0)
    assert (first.copy_s, first.predict_s, first.average_s) == (0.5, 0.75, 0.25)


@pytest.mark.parametrize(("size", "num_sums"), [(1, 1), (35, 1), (40, 2)])
def test_a_stage_is_added_up_at_the_sizes_around_its_own_alone(monkeypatch, size, num_sums):
    row = layer(*(measurement(size) for size in [*range(1, 37), 100]))
    summed = []
    monkeypatch.setattr(layer_profile, "saved_bytes", lambda measured: summed.append(measured) or saved_bytes(measured))
    profile(row, row).costs_of_layers([(0, 2)], size)
    assert len(summed) == num_sums
    profile(row, row).seconds_of_layers(size)
    assert len(summed) == num_sums


def test_costs_of_layers_whose_copies_were_not_measured_say_so():
    old = layer(measurement(1), measurement(2), work=None)
    costs = profile(old, old).costs_of_layers([(0, 1), (1, 2)], 2)
    assert [(cost.copy_s, cost.predict_s, cost.average_s) for cost in costs.stages] == [(0.0, 0.0, 0.0)] * 2
    assert costs.origin.endswith("without copies of weights")
    assert "without" not in profile(layer(), layer()).costs_of_layers([(0, 2)], 1).origin


def test_i_and_w_of_a_stage_are_the_sums_of_its_layers_and_the_first_stage_has_no_i():
    row = layer(measurement(split=split(0.75, 0.5)))
    first, second = profile(row, row, row).costs_of_layers([(0, 1), (1, 3)], 1).stages
    assert (first.backward_input_s, first.backward_weight_s) == (0.0, first.backward_s)
    assert (second.backward_input_s, second.backward_weight_s) == (1.5, 1.0)


def test_a_stage_with_a_layer_that_has_no_split_does_not_know_i_and_w():
    known, unknown = layer(measurement(split=split())), layer()
    _, second = profile(known, known, unknown).costs_of_layers([(0, 1), (1, 3)], 1).stages
    assert (second.backward_input_s, second.backward_weight_s, second.saved_for_weight_bytes) == (None, None, None)
    assert second.backward_s == 4.0


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        # the stage's input (10), the inside of both layers (200), and the gradients of both
        ([split(gradient_bytes=7), split(gradient_bytes=5)], 222),
        # of the last layer 30 are left
        ([split(gradient_bytes=7), split(gradient_bytes=5, saved_bytes=30)], 152),
        # the last has no parameters: nothing of it is left, and of the one before 60
        ([split(gradient_bytes=7, saved_bytes=60), split(gradient_bytes=0, saved_bytes=0)], 77),
        # the one before keeps all, though alone it would keep 60
        ([split(gradient_bytes=7, saved_bytes=60), split(gradient_bytes=5)], 222),
        # nothing in the stage has parameters
        ([split(gradient_bytes=0, saved_bytes=0)] * 2, 0),
    ],
)
def test_what_waits_for_w_is_all_below_the_topmost_parameters(splits, expected):
    rows = [layer(), *(layer(measurement(split=split_times)) for split_times in splits)]
    assert profile(*rows).costs_of_layers([(0, 1), (1, 3)], 1).stages[1].saved_for_weight_bytes == expected


def test_a_boundary_that_the_layer_below_keeps_is_left_when_the_layer_above_lets_go_of_it():
    below = measurement(output_saved=True, split=split(output_saved=False))
    above = measurement(input_saved=True, split=split(saved_bytes=0, gradient_bytes=5))
    rows = [layer(), layer(below), layer(above)]
    # input, inside, boundary, gradients
    assert profile(*rows).costs_of_layers([(0, 1), (1, 3)], 1).stages[1].saved_for_weight_bytes == 10 + 100 + 10 + 12


def test_i_and_w_between_two_sizes_lie_on_the_line_between_them():
    row = layer(measurement(2, split=split(1.0, 2.0, 10, 200)), measurement(6, split=split(3.0, 8.0, 30, 600)))
    cost = profile(row, row).costs_of_layers([(0, 1), (1, 2)], 3).stages[1]
    assert (cost.backward_input_s, cost.backward_weight_s) == (1.5, 3.5)
    assert cost.saved_for_weight_bytes == 15 + 300 + 30


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # the stage's input x (10), the inside of two layers (200), and what the flags add
        ([{}, {}], 210),
        ([{"input_saved": True}, {}], 210),  # x counts once
        ([{"output_saved": True}, {}], 220),
        ([{}, {"input_saved": True}], 220),
        ([{"output_saved": True}, {"input_saved": True}], 220),  # the boundary between them counts once
        ([{}, {"output_saved": True}], 220),  # the stage's output counts only when saved
        ([{"output_is_input": True}, {"input_saved": True}], 210),  # still the same storage as x
        ([{"output_storage_bytes": 70}, {"input_saved": True}], 280),  # a view keeps the whole storage
    ],
)
def test_a_storage_is_counted_once_in_a_stage(flags, expected):
    layers = [layer(measurement(**fields)) for fields in flags]
    assert profile(*layers).costs_of_layers([(0, 2)], 1).stages[0].saved_bytes == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([{}, {}], False),
        ([{"output_saved": True}, {}], False),  # of a layer before
        ([{}, {"output_saved": True}], True),
        ([{"output_saved": True}, {"output_is_input": True}], True),  # what the last one only reshapes
        ([{}, {"output_is_input": True}], False),
        ([{}, {"output_is_input": True, "input_saved": True}], True),
        ([{"output_is_input": True}, {"output_is_input": True}], True),  # the stage's input
        ([{}, {"output_saved": True, "output_storage_bytes": 70}], False),  # a part of something larger
    ],
)
def test_an_output_is_saved_if_its_storage_is_and_nothing_else_is_in_it(flags, expected):
    layers = [layer(measurement(**fields)) for fields in flags]
    assert profile(*layers).costs_of_layers([(0, 2)], 1).stages[0].output_is_saved is expected


def test_a_shared_boundary_counts_in_both_stages_when_it_is_cut():
    layers = [layer(measurement(output_saved=True)), layer(measurement(input_saved=True))]
    assert [s.saved_bytes for s in profile(*layers).costs_of_layers([(0, 1), (1, 2)], 1).stages] == [120, 110]


def test_a_size_between_two_measured_ones_lies_on_the_line_between_them():
    row = layer(measurement(2, 1.0, 2.0), measurement(6, 3.0, 4.0))
    (cost,) = profile(row).costs_of_layers([(0, 1)], 3).stages
    assert (cost.forward_s, cost.backward_s, cost.saved_bytes, cost.output_bytes) == (1.5, 2.5, 330, 30)
    assert (cost.step_s, cost.copy_s, cost.predict_s, cost.average_s) == (0.5, 0.25, 0.375, 0.125)


@pytest.mark.parametrize("size", [0, 1, 7, -3])
def test_a_size_outside_the_measured_ones_is_refused(size):
    row = layer(measurement(2), measurement(6))
    with pytest.raises(ProfileError, match=f"got {size}, expected 2 to 6"):
        profile(row).costs_of_layers([(0, 1)], size)


def on_gpu(*layers):
    cpu_profile = profile(*layers)
    return replace(cpu_profile, provenance=replace(cpu_profile.provenance, kind="cuda"))


def test_utilisation_of_a_gpu_is_the_share_of_the_best_throughput():
    row = layer(measurement(1, 1.0, 1.0), measurement(4, 2.0, 2.0))  # 0.5 and 1 samples per second
    assert on_gpu(row).costs_of_layers([(0, 1)], 1).stages[0].utilisation == 0.5
    assert on_gpu(row).costs_of_layers([(0, 1)], 4).stages[0].utilisation == 1.0


def test_a_core_has_nothing_to_spare_while_it_computes():
    row = layer(measurement(1, 1.0, 1.0), measurement(4, 2.0, 2.0))
    assert profile(row).costs_of_layers([(0, 1)], 1).stages[0].utilisation == 1.0


def test_a_gpu_that_waits_for_its_host_leaves_nothing_to_others():
    row = layer(measurement(1, 1.0, 2.0, launch_s=2.4), measurement(4, 2.0, 4.0, launch_s=3.0))
    sizes = {size: on_gpu(row).costs_of_layers([(0, 1)], size).stages[0].utilisation for size in (1, 2, 4)}
    assert sizes == pytest.approx({1: 0.8, 2: 0.75, 4: 1.0})  # by throughput: 0.5, 0.75 and 1


def test_a_backward_works_in_the_most_of_its_layers_less_what_later_ones_have_let_go_of():
    rows = layer(measurement(working_bytes=180)), layer(measurement(working_bytes=60)), layer(measurement())
    stages = profile(*rows).costs_of_layers([(0, 2), (2, 3)], 1).stages
    assert [cost.working_bytes for cost in stages] == [180 + 10 - 100, 0]  # 10 is the gradient between the two
    assert profile(*rows).costs_of_layers([(0, 3)], 1).stages[0].working_bytes == 0  # 190 - 200
    for is_saved, working in ((False, 90), (True, 80)):  # the last layer's input goes with it
        pair = layer(measurement(working_bytes=180)), layer(measurement(input_saved=is_saved))
        assert profile(*pair).costs_of_layers([(0, 2)], 1).stages[0].working_bytes == working


@given(
    times=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=3, max_size=3),
    size=st.integers(1, 9),
)
def test_utilisation_is_never_above_one(times, size):
    row = layer(*(measurement(s, *t) for s, t in zip((1, 4, 9), times, strict=True)))
    assert 0 <= on_gpu(row).costs_of_layers([(0, 1)], size).stages[0].utilisation <= 1


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([(0, 1), (1, 2), (2, 3)], "got 3 layers in all stages, expected 2"),
        ([(0, 1), (0, 2)], "follow each other"),
        ([(0, 0), (0, 2)], "at least 1 layer"),
        ([], "at least 1 layer"),
    ],
)
def test_bounds_that_do_not_cut_the_layers_up_are_refused(bounds, message):
    with pytest.raises(ProfileError, match=message):
        profile(layer(), layer()).costs_of_layers(bounds, 1)


def test_layer_seconds_are_forward_plus_backward():
    rows = (layer(measurement(1, 1.0, 2.0)), layer(measurement(1, 5.0, 7.0)))
    assert profile(*rows).seconds_of_layers(1) == (3.0, 12.0)


def test_seconds_lie_half_way_and_bytes_stay():
    quicker, middle, slower = (
        profile(layer(measurement(1, forward_s), step_s=step_s))
        for forward_s, step_s in ((1.0, 0.5), (3.0, 1.0), (5.0, 1.5))
    )
    assert median_profile(quicker, slower) == middle
    assert median_profile(quicker, quicker) == quicker


def test_of_three_each_number_is_its_own_median():
    """The slowest profile by one number is another profile than the slowest by another number."""
    several = [profile(layer(measurement(1, f, b))) for f, b in ((1.0, 9.0), (2.0, 7.0), (9.0, 1.0))]
    (median,) = median_profile(*several).layers[0].measurements
    assert (median.forward_s, median.backward_s) == (2.0, 7.0)


def test_profiles_of_other_layers_have_no_median():
    with pytest.raises(ProfileError, match="different layers"):
        median_profile(profile(layer(measurement(1))), profile(layer(measurement(2))))


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
