"""Costs of a stage whose backward pass is known as a whole, in two parts, or not at all."""

import pytest

from pipesched.profiles.costs import StageCost


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
