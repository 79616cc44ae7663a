"""Chains whose stages pass several tensors on, against the model in one piece, in float64."""

import pytest
import torch

from pipesched.executor.launch import Measure, RunSpec
from pipesched.executor.runs.measuring_job import whole_model_losses
from pipesched.profiles.models import build_layers
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.schedules.transforms import recompute
from tests.executor import tuple_models
from tests.executor.pipelines import SYNCHRONOUS, Local, any_schedule, assert_equal
from tests.schedules.edits import without_steps


def parts_of(value, num_microbatches):
    """Cut a batch by hand."""
    if isinstance(value, tuple):
        return list(zip(*(parts_of(tensor, num_microbatches) for tensor in value), strict=True))
    value = value.double() if value.is_floating_point() else value
    return list(value.chunk(num_microbatches))


def by_hand(model, num_microbatches, size=2):
    """Return the losses of the model in one piece, and the gradients of their mean; zeros if there is none."""
    module = build_layers(model, 0, len(model.layers), seed=0, dtype=torch.float64)
    inputs, targets = (parts_of(value, num_microbatches) for value in model.batch(size * num_microbatches, 0))
    losses = []
    for x, y in zip(inputs, targets, strict=True):
        for layer in module:
            x = layer(x)
        losses.append(model.loss(x, y))
    torch.stack(losses).mean().backward()
    return [loss.item() for loss in losses], [filled(parameter) for parameter in module.parameters()]


def filled(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def compare(schedule, model):
    run = Local(without_steps(schedule), model).run()
    losses, expected = by_hand(model, schedule.num_microbatches)
    assert_equal(map(filled, run.parameters), expected)
    for rank in run.ranks:  # all replicas of a stage
        for index, stage in rank.stages.items():
            own = zip(stage.module.parameters(), run.stage(index).module.parameters(), strict=True)
            assert all(torch.equal(filled(copy), filled(first)) for copy, first in own)
    loss_of = {k: v for rank in run.ranks for stage in rank.stages.values() for k, v in stage.losses().items()}
    assert [loss_of[number] for number in range(schedule.num_microbatches)] == pytest.approx(losses, rel=1e-12)


MODELS = {model.__name__: model for model in (tuple_models.mixed, tuple_models.twins, tuple_models.fed)}


@pytest.mark.parametrize("transform", [lambda schedule: schedule, recompute], ids=["plain", "recompute"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_gradients_are_those_of_the_whole_model(name, make, transform):
    for num_ranks in (2, 4):
        schedule = any_schedule(name, num_ranks, seed=num_ranks)
        if schedule is not None:
            compare(transform(schedule), make(layers=max(4, schedule.num_stages)))


def test_losses_of_the_whole_model_are_found_with_inputs_and_targets_of_several_tensors():
    schedule, model = build("1f1b", 2, 4), tuple_models.fed(layers=4)
    job = Measure(schedule=to_json(schedule), microbatch_size=2, iterations=1, warmup=0)
    spec = RunSpec(job=job, model="fed", bounds=((0, 2), (2, 4)), dtype="float64", optimizer="sgd", lr=0.1)
    assert whole_model_losses(spec, model) == pytest.approx(by_hand(model, 4)[0], rel=1e-12)
