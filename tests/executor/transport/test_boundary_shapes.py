"""Shapes between stages are found without a trace in the stages."""

import copy

import pytest
import torch
from torch import nn

from pipesched.executor import ExecutionError, RunSettings
from pipesched.executor.core import build_stages
from pipesched.executor.transport import boundary_shapes, find_shapes
from pipesched.profiles.models import Model
from pipesched.schedules.builders import build
from tests.executor import models, tuple_models
from tests.executor.pipelines import CPU, even_bounds


@pytest.fixture
def alone(monkeypatch):
    """Let one rank be all ranks."""
    monkeypatch.setattr(boundary_shapes, "share", lambda text, owner, what: text)


def stages_of(model, num_chunks):
    schedule = build("interleaved", 1, 2, num_chunks=num_chunks)
    bounds = even_bounds(len(model.layers), num_chunks)
    stages = build_stages(schedule, 0, model, bounds, RunSettings(optimizer="sgd", lr=0.1, dtype="float64"), CPU)
    return schedule, stages


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("num_chunks", [2, 4, 8])
def test_modes_buffers_weights_and_random_numbers_stay(num_chunks):
    schedule, stages = stages_of(models.frozen(8), num_chunks)
    parts = [part for stage in stages.values() for part in stage.module.modules()]
    modes = [part.training for part in parts]
    calls = [getattr(part, "calls", None) for part in parts]
    tensors = [copy.deepcopy(stage.module.state_dict()) for stage in stages.values()]
    assert {True, False} == set(modes)
    state = torch.get_rng_state()
    shapes = find_shapes(schedule, 0, stages, torch.ones(4, models.WIDTH, dtype=torch.float64))
    assert [shape.size for shape in shapes.values()] == [(4, models.WIDTH)] * (num_chunks - 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in parts] == modes
    assert [getattr(part, "calls", None) for part in parts] == calls
    for stage, before in zip(stages.values(), tensors, strict=True):
        now = stage.module.state_dict()
        assert now.keys() == before.keys()
        assert all(torch.equal(now[name], before[name]) for name in before)


class HalvedInTraining(nn.Module):
    """Drops half of its input in training, as patch dropout does."""

    def forward(self, x):
        return x[:, : models.WIDTH // 2] if self.training else x


@pytest.mark.usefixtures("alone")
def test_shapes_are_those_of_the_modes_that_the_layers_run_in():
    plain = models.plain(2)
    layers = (HalvedInTraining, lambda: HalvedInTraining().eval())
    schedule, stages = stages_of(Model("halved", layers, ("a", "b"), plain.loss, plain.batch), 2)
    shapes = find_shapes(schedule, 0, stages, torch.ones(4, models.WIDTH, dtype=torch.float64))
    assert shapes[0].size == (4, models.WIDTH // 2)


@pytest.mark.usefixtures("alone")
def test_the_tensors_of_a_tuple_require_gradients_as_in_a_run():
    schedule, stages = stages_of(tuple_models.mixed(4), 4)
    shapes = find_shapes(schedule, 0, stages, torch.ones(4, models.WIDTH, dtype=torch.float64))
    real, size = torch.float64, (4, models.WIDTH)
    first = [(real, size, True), (real, size, True), (torch.bool, size, False), (torch.int64, size, False), None]
    kept = [(real, size, False), (real, size, True)]
    biased = [*first[:4], (real, (models.WIDTH,), True), *kept]
    assert [
        [None if part is None else (part.dtype, part.size, part.requires_grad) for part in shape.parts]
        for shape in shapes.values()
    ] == [[*first, *kept], biased, biased]


class AsWhole(nn.Module):
    def forward(self, x):
        return x.long()


@pytest.mark.usefixtures("alone")
def test_an_integer_tensor_alone_requires_no_gradient():
    plain = models.plain(2)
    model = Model("whole", (AsWhole, lambda: nn.Embedding(9, models.WIDTH)), ("a", "b"), plain.loss, plain.batch)
    schedule, stages = stages_of(model, 2)
    shapes = find_shapes(schedule, 0, stages, torch.ones(4, models.WIDTH, dtype=torch.float64))
    assert (shapes[0].dtype, shapes[0].requires_grad) == (torch.int64, False)


@pytest.mark.usefixtures("alone")
def test_a_stage_that_fails_keeps_its_modes():
    schedule, stages = stages_of(models.frozen(8), 2)
    modes = [part.training for part in stages[0].module.modules()]
    with pytest.raises(ExecutionError, match="stage 0: got RuntimeError"):
        find_shapes(schedule, 0, stages, torch.ones(4, 3, dtype=torch.float64))
    assert [part.training for part in stages[0].module.modules()] == modes
