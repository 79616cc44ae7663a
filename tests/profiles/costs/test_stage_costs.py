"""Costs of a stage whose backward pass is known as a whole, in two parts, or not at all."""

import pytest

from pipesched.profiles.costs import StageCost
from pipesched.profiles.costs.single_stage import added_up, working_bytes


@pytest.mark.parametrize(
    ("cost", "both_s"),
    [
        (StageCost(1.0, None, 1.0, 1.0), 3.0),
        (StageCost(1.0, 5.0, 1.0, 1.0), 6.0),
        (StageCost(1.0, 0.0, 1.0, 1.0), 1.0),
        (StageCost(1.0, None, 1.0, None), 1.0),
    ],
)
def test_forward_and_backward_together_count_a_backward_in_two_parts(cost, both_s):
    assert cost.both_s == both_s


@pytest.mark.parametrize(
    ("workings", "saved", "most"),
    [
        ((), (), 0),
        ((5,), (9,), 5),
        ((5, 7), (9, 3), 7),  # working memory of the last layer, while all layers hold their saved bytes
        ((50, 7), (9, 3), 47),  # working memory of the first layer, minus the freed saved bytes of the last
        ((4, 0), (9, 30), 0),  # less than the freed saved bytes: no more than the saved bytes of the stage
        ((60, 50, 1), (0, 10, 20), 30),
    ],
)
def test_layers_behind_have_let_go_of_what_they_saved_when_the_backward_works_in_a_layer(workings, saved, most):
    assert working_bytes(workings, saved) == most
    if workings:
        costs = [StageCost(1.0, 2.0, saved_bytes=s, working_bytes=w) for w, s in zip(workings, saved, strict=True)]
        assert added_up(costs).working_bytes == most
