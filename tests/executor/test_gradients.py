"""Every synchronous schedule against the model in one piece, in float64."""

from itertools import cycle, islice

import pytest
import torch

from pipesched.profiles.models import resolve_model
from pipesched.schedules.transforms import recompute
from tests.executor import models
from tests.executor.pipelines import SYNCHRONOUS, Local, any_schedule, assert_equal, whole_gradients
from tests.properties import thinned
from tests.schedules.edits import without_steps

REAL = {
    "gpt": "gpt:layers=6,width=16,heads=2,context=8,dropout=0.2",
    "conv": "conv:channels=4,blocks=6,image=8",
    "lstm": "lstm:layers=6,width=8,context=4,dropout=0.2",
}


def as_it_is(schedule):
    return schedule


def gradients(schedule, model, seed=0):
    """Run `schedule` without its Steps; return the gradients, which all replicas of a stage must have."""
    run = Local(without_steps(schedule), model, seed=seed).run()
    for index in range(schedule.num_stages):
        first, *others = ([p.grad for p in stage.module.parameters()] for stage in run.replicas(index))
        assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    return [p.grad for p in run.parameters]


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_gradients_are_those_of_the_whole_model_on_any_number_of_ranks(name):
    """Every other number of ranks with dropout and recomputation; half of the schedules begin with these."""
    built = [any_schedule(name, num_ranks, seed=num_ranks) for num_ranks in (1, 2, 3, 4, 6)]
    ways = islice(cycle([(models.plain, as_it_is), (models.dropping, recompute)]), SYNCHRONOUS.index(name) % 2, None)
    ran = [*zip(filter(None, built), ways, strict=False)]
    assert len(ran) >= 3
    for schedule, (make, transform) in ran:
        model = make(layers=schedule.num_stages + schedule.num_ranks % 3)
        assert_equal(gradients(transform(schedule), model), whole_gradients(model, schedule.num_microbatches))


@pytest.mark.parametrize(("name", "text"), thinned(SYNCHRONOUS, REAL.values(), every=3))
def test_gradients_of_attention_and_convolution_are_those_of_the_whole_model(name, text):
    schedule, model = any_schedule(name, 2, seed=1), resolve_model(text)
    stage_gradients = gradients(recompute(schedule), model, seed=3)
    assert_equal(stage_gradients, whole_gradients(model, schedule.num_microbatches, seed=3))
