"""A Step takes the mean over its micro-batches, whichever way it is made: PyTorch's own mean says what it is."""

import pytest
import torch
from torch import nn

from pipesched.executor.core.gradients import GradientMean, loss_scales, step_sizes
from pipesched.schedules import make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Compute, Phase, Step

STEPS = ((0, 1, 2), (3, 4))
"""The micro-batches of each."""


def backward(microbatch):
    return Compute(Phase.BACKWARD, 0, microbatch)


def two_steps():
    return make_schedule("two", 1, 5, [[op for row in STEPS for op in (*map(backward, row), Step(0))]])


@pytest.mark.parametrize("scales", [True, False])
def test_the_gradient_of_a_step_is_that_of_the_mean_loss(scales):
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 1).double(), torch.randn(5, 2, 3, dtype=torch.float64)
    schedule = two_steps()
    mean = GradientMean(loss_scales(schedule) if scales else None, lambda: step_sizes(schedule, 0, 0))
    mean.begin()
    for microbatches in STEPS:
        layer.zero_grad()
        layer(x[list(microbatches)]).square().mean().backward()
        expected = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.zero_grad()
        for microbatch in microbatches:
            (layer(x[microbatch]).square().mean() * mean.loss_scale(microbatch)).backward()
        mean.divide(layer.parameters())
        mean.divide(layer.parameters())  # for the norm and for the Step: once
        mean.end_step()
        for parameter, gradient in zip(layer.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("name", "counts"), [("gpipe", {}), ("1f1b", {}), ("dualpipe", {}), ("pipedream", {})])
def test_a_loss_is_scaled_by_one_over_the_size_of_its_step(name, counts):
    schedule = build(name, 2, 4, **counts)
    size = 1 if schedule.traits.is_asynchronous else 4
    assert loss_scales(schedule) == dict.fromkeys(range(4), 1 / size)
    for rank in range(2):
        for stage in schedule.stages_on(rank):
            assert set(step_sizes(schedule, rank, stage)) == {size}
