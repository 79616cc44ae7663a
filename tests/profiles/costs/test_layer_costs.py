"""Costs of layers, cut into stages."""

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerCosts, StageCost


def test_a_stage_takes_what_its_layers_take_and_sends_what_the_last_of_them_sends():
    first = StageCost(
        1.0, 2.0, 0.5, 1.5, step_s=0.25, output_bytes=7, saved_bytes=10, weight_bytes=3, optimizer_bytes=6
    )
    second = StageCost(
        3.0, 5.0, 2.0, 3.0, step_s=0.5, output_bytes=9, saved_bytes=20, weight_bytes=4, optimizer_bytes=8
    )
    costs = LayerCosts((first, second, first), "mine", overlap=0.5).costs_of_layers([(0, 2), (2, 3)])
    both = StageCost(
        4.0, 7.0, 2.5, 4.5, step_s=0.75, output_bytes=9, saved_bytes=30, weight_bytes=7, optimizer_bytes=14
    )
    assert costs.stages == (both, first)
    assert (costs.origin, costs.overlap, costs.microbatch_size) == ("mine", 0.5, None)


def test_what_one_layer_leaves_out_counts_as_what_that_stands_for():
    plain = StageCost(1.0, 2.0, saved_bytes=10, copy_s=0.5)
    said = StageCost(
        3.0, None, 2.0, 4.0, saved_bytes=20, saved_for_weight_bytes=5, copy_s=1.0, predict_s=2.0, recompute_s=7.0
    )
    (stage,) = LayerCosts((plain, said)).costs_of_layers([(0, 2)]).stages
    assert (stage.backward_s, stage.recompute_s, stage.predict_s, stage.saved_for_weight_bytes) == (8.0, 8.0, 2.5, 15)
    assert (stage.backward_input_s, stage.backward_weight_s) == (None, None)
    (stage,) = LayerCosts((plain, plain)).costs_of_layers([(0, 2)]).stages
    assert (stage.recompute_s, stage.predict_s, stage.saved_for_weight_bytes) == (None, None, None)


def test_stages_of_another_number_of_layers_are_refused():
    with pytest.raises(ProfileError, match=r"costs \(mine\): got 1 layers, expected 2"):
        LayerCosts((StageCost(1.0, 2.0),), "mine").costs_of_layers([(0, 1), (1, 2)])
