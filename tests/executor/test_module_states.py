"""A run changes modes, buffers and weights as the un-pipelined model changes them, and random numbers not at all."""

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pipesched
from pipesched.executor.training.batches import step_seed
from pipesched.profiles.models import build_layers, resolve_model
from pipesched.schedules.transforms import ScheduleSpec

NAME, LAYERS, STEPS, MICROBATCHES = "tests.executor.models:frozen:layers=8", 8, 3, 4


def plain_loop():
    """Train the whole model, one micro-batch after the other; return its tensors by name."""
    model = resolve_model(NAME)
    module = build_layers(model, 0, LAYERS, seed=0, dtype=torch.float64)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.05)
    for step in range(STEPS):
        x, y = (samples.double().chunk(MICROBATCHES) for samples in model.batch(16, step_seed(0, step)))
        for inputs, targets in zip(x, y, strict=True):
            (model.loss(module(inputs), targets) / MICROBATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module.state_dict()


def trained(path, name, num_ranks=2, *, is_distributed=False, **fields):
    pipesched.train(
        NAME, ScheduleSpec(name=name, num_ranks=num_ranks, num_microbatches=MICROBATCHES, **fields),
        num_steps=STEPS, batch_size=16, optimizer="sgd", lr=0.05, dtype="float64", partition="uniform", export=path,
        is_distributed=is_distributed,
    )  # fmt: skip
    return load_file(path)


def require_same(weights, expected):
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name


@pytest.mark.parametrize("recompute", [None, "all"])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1", "interleaved"])
def test_a_model_with_frozen_parts_trains_as_without_a_pipeline(name, recompute, tmp_path):
    if recompute and name == "zb_h1":
        pytest.skip("splits the backward")
    chunks = {"num_chunks": 2} if name == "interleaved" else {}
    weights = trained(tmp_path / "w.safetensors", name, recompute=recompute, **chunks)
    require_same(weights, plain_loop())


@pytest.mark.distributed
def test_a_model_with_frozen_parts_trains_as_without_a_pipeline_in_processes(tmp_path):
    weights = trained(tmp_path / "w.safetensors", "1f1b", is_distributed=True, recompute="all")
    require_same(weights, plain_loop())


def drawn():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()  # noqa: NPY002


@pytest.mark.parametrize(
    "call",
    [
        lambda path: trained(path / "w.safetensors", "1f1b"),
        lambda path: pipesched.profile("tests.executor.models:dropping:layers=2", microbatch_sizes=[1], repeats=1),
    ],
)
def test_a_run_in_this_process_leaves_its_random_numbers(call, tmp_path):
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    expected = drawn()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    call(tmp_path)
    assert drawn() == expected
