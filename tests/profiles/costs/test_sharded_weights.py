"""Exchanges of sharded weights around the layers of a stage, against closed forms."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.costs import (
    LayerCost,
    LayerMeasurement,
    LayerSharding,
    LayerSplit,
    Profile,
    ShardedWeights,
    estimated_provenance,
    least_delay_s,
)
from tests.properties import examples

SLOWED = 0.189 / 1.189
"""Share of an exchange by which it slows the work beside it: arXiv:2507.03114, 18.9 % in the mean."""


def layer(forward_s, input_s, weight_s, sharded, *, is_last=False):
    split = LayerSplit(input_s, weight_s, 0, 10, input_saved=True, output_saved=False)
    measured = LayerMeasurement(
        1, forward_s, input_s + weight_s, 8, 0 if is_last else 8, 8, 10, input_saved=True, output_saved=False,
        output_is_input=False, split=split, working_bytes=100,
    )  # fmt: skip
    return LayerCost("layer", 50, 60, 0.5, (measured,), gradient_bytes=0, sharded=sharded)


def profile(layers, *, hides):
    split = LayerSharding(data=8, zero=3, hides_weights=hides, hides_gradients=hides)
    return Profile("m", tuple(layers), estimated_provenance("a GPU, estimated", "adamw", split, None))


def equal(count, gather_s, sum_s, *, hides):
    sharded = ShardedWeights(gather_s, sum_s, 200, 400)
    return profile([layer(3.0, 4.0, 2.0, sharded, is_last=at == count - 1) for at in range(count)], hides=hides)


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize(("gather_s", "sum_s"), [(1.0, 2.0), (1.0, 0.5), (5.0, 3.0), (0.0, 0.0)])
def test_a_stage_alone_shows_its_first_gather_and_its_last_sum(count, gather_s, sum_s):
    cost = equal(count, gather_s, sum_s, hides=True).cost_of_layers(0, count)
    assert cost.forward_s == pytest.approx(gather_s + (count - 1) * max(gather_s, 3 + SLOWED * gather_s) + 3)
    first = max(gather_s, 6 + SLOWED * gather_s)  # beside the head: the gather of the layer before it
    between = max(gather_s + sum_s, 6 + SLOWED * (gather_s + sum_s))
    last = max(sum_s, 6 + SLOWED * sum_s)
    assert cost.backward_s == pytest.approx(first + (count - 2) * between + last + sum_s)
    assert (cost.step_s, cost.gradient_bytes) == (0.5 * count, 0)


@pytest.mark.parametrize("hides", [False, True])
def test_a_stage_of_several_gathers_in_each_pass_and_sums_once(hides):
    costs = equal(6, 1.0, 2.0, hides=hides).costs_of_layers([(0, 2), (2, 4), (4, 6)])
    first, middle, last = costs.stages
    gathers_s = 1 + SLOWED if hides else 2
    assert [cost.forward_s for cost in costs.stages] == pytest.approx([6 + gathers_s] * 3)
    assert [cost.backward_s for cost in (first, middle)] == pytest.approx([12 + gathers_s] * 2)
    assert last.backward_s == pytest.approx(12 + (SLOWED if hides else 1))  # the head is whole since its forward
    assert (middle.backward_input_s, middle.backward_weight_s) == pytest.approx((8 + gathers_s, 4))
    assert (first.backward_input_s, first.backward_weight_s) == (0.0, first.backward_s)
    assert [cost.step_s for cost in costs.stages] == [2 * 0.5 + 2 * 2.0] * 3
    assert [cost.gradient_bytes for cost in costs.stages] == [2 * (200 + 400)] * 3


@pytest.mark.parametrize("count", [2, 4, 6])
def test_gathered_weights_count_once(count):
    """Alone, two layers are whole at once; in a pipeline all are, and so they are between Unshard and Reshard."""
    layers, halves = equal(count, 1.0, 2.0, hides=True), [(0, count // 2), (count // 2, count)]
    alone = layers.cost_of_layers(0, count)
    assert (alone.weight_bytes, alone.gradient_bytes, alone.working_bytes) == (50 * count, 0, 100 + 2 * 200)
    half = count // 2
    for cost in layers.costs_of_layers(halves).stages:
        assert (cost.weight_bytes, cost.gradient_bytes, cost.working_bytes) == (50 * half, (200 + 400) * half, 100)
    for cost in layers.costs_of_layers(halves, has_unshards=True).stages:
        assert (cost.weight_bytes, cost.gradient_bytes, cost.working_bytes) == ((50 + 200) * half, 400 * half, 100)


@examples(100)
@given(seed=st.integers(0, 10**6), hides=st.booleans())
def test_exchanges_only_lengthen_passes_and_never_beyond_their_own_time(seed, hides):
    chance = random.Random(seed)
    count = chance.randint(1, 6)
    drawn = [ShardedWeights(chance.uniform(0, 9), chance.uniform(0, 9), 1, 1) for _ in range(count)]
    layers = [layer(*(chance.uniform(0, 9) for _ in "fiw"), sharded, is_last=sharded is drawn[-1]) for sharded in drawn]
    whole = profile([replace(cost, sharded=None) for cost in layers], hides=hides).cost_of_layers(0, count)
    cost = profile(layers, hides=hides).cost_of_layers(0, count)
    gathers_s, sums_s = (sum(getattr(sharded, name) for sharded in drawn) for name in ("gather_s", "sum_s"))
    again_s = gathers_s - drawn[-1].gather_s
    for own_s, alone_s, exchanges_s in (
        (cost.forward_s, whole.forward_s, gathers_s), (cost.backward_s, whole.backward_s, again_s + sums_s)
    ):  # fmt: skip
        assert max(alone_s + least_delay_s(exchanges_s), exchanges_s) <= own_s + 1e-9
        assert own_s <= alone_s + exchanges_s + 1e-9
        assert hides or own_s == pytest.approx(alone_s + exchanges_s)
