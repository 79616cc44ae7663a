"""`pipesched.analytic_profile`: costs of a GPU that is not there, and invalid arguments."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from matplotlib.figure import Figure

import pipesched
from pipesched.profiles.clusters import Device
from pipesched.profiles.io import load_gpu, model_shape
from pipesched.schedules.transforms import recompute
from pipesched.workflows import ArgumentError

estimate: Any = partial(pipesched.analytic_profile, "gpt:layers=4,width=512,heads=8,context=256,vocab=512")
GPU = replace(load_gpu("a100"), name="mine", machine=None)


@pytest.mark.slow
def test_an_estimate_is_a_profile_that_everything_takes(tmp_path):
    estimated = estimate("h100", [4, 1, 1], tensor=2)
    assert estimated.profile.microbatch_sizes == (1, 4)
    assert estimated.table().caption == "h100, estimated"
    assert estimated.profile.gpus_per_device == 2
    assert len(estimated.to_frame()) == 2 * 6
    assert isinstance(estimated.plot(), Figure)
    estimated.save(tmp_path / "gpt.json")
    assert pipesched.load_profile(tmp_path / "gpt.json") == estimated.profile

    simulated = pipesched.simulate(
        pipesched.build("zb_h1", 2, 4), pipesched.Setup(tmp_path / "gpt.json", microbatch_size=2)
    )
    assert "estimated" in simulated.costs.origin
    planned = pipesched.plan(estimated.profile, batch_size=8, num_devices=2, top=1)
    assert planned.plan is not None
    assert "estimated" in planned.plan.origin


def test_a_gpu_a_machine_and_a_shape_may_be_given():
    shape = model_shape("llama3-8b")
    by_name = pipesched.analytic_profile("llama3-8b", "a100", [1], tensor=2).profile
    given = pipesched.analytic_profile(shape, GPU, [1], tensor=2, machine=pipesched.load_machine("dgx-a100")).profile
    assert given.layers == by_name.layers
    assert given.sample_work == by_name.sample_work == shape.sample_work(312e12)
    slow = pipesched.Cluster((Device(),) * 2, intra=pipesched.Link(1e-3, 1e9))
    slower = pipesched.analytic_profile(shape, GPU, [1], tensor=2, machine=slow).profile
    assert slower.layers[1].measurements[0].forward_s > 2 * given.layers[1].measurements[0].forward_s


def test_the_names_of_gpus_are_those_of_the_table():
    from pipesched.cli.commands.profile import _GPUS
    from pipesched.profiles.io import gpu_names

    assert ", ".join(gpu_names()) == _GPUS
    assert all(f"``{name}``" in pipesched.analytic_profile.__doc__ for name in gpu_names())


WRONG = [
    ("gpu: got 'h10', expected one of a10, a100", lambda: estimate("h10")),
    ("gpu: got None, expected one of", lambda: estimate(None)),
    ("microbatch_sizes: got 0, expected at least 1", lambda: estimate("a100", [1, 0])),
    ("microbatch_sizes: got 1000", lambda: estimate("a100", [1, 10**400])),
    ("microbatch_sizes: got an empty list", lambda: estimate("a100", [])),
    ("zero: got 4, expected at most 3", lambda: estimate("a100", zero=4)),
    ("has_sequence: got True with tensor parallelism of 1", lambda: estimate("a100", has_sequence=True)),
    ("machine: got none, expected the node of the 2 GPUs of a stage", lambda: estimate(GPU, tensor=2)),
    ("machine: got 3, expected the name of a node", lambda: estimate("a100", tensor=2, machine=3)),
    ("model: got 3, expected the name of a model", lambda: pipesched.analytic_profile(3, "a100")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("message", "call"), WRONG)
def test_what_makes_no_sense_is_named(message, call):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("conv", {}, "model: got 'conv', expected one of bloom-176b, "),
        ("llama3-70", {}, "model: got 'llama3-70', did you mean llama3-70b? expected one of bloom-176b, "),
        ("gpt:depth=2", {}, "model 'gpt:depth=2': got an unknown argument 'depth', expected one of layers, width"),
        ("gpt:width=30", {}, "model 'gpt:width=30': width: got 30, expected a multiple of heads=8; try width=32"),
        ("gpt:vocab=0", {}, "model 'gpt:vocab=0': vocab: got 0, expected 1 to 2147483647; raise it"),
        ("gpt", {"tensor": 3}, "sharding of gpt: `tensor`: got 3, expected a divisor of heads=8; try `tensor=2`"),
        ("gpt", {"precision": "float8"}, "gpu a100: flops_per_s: got no float8, expected one of bfloat16, float16"),
        ("hf:nowhere/config.json", {}, "nowhere/config.json: "),
    ],
)
def test_a_model_that_cannot_be_estimated_is_named(model, settings, message):
    with pytest.raises(pipesched.ProfileError) as caught:
        pipesched.analytic_profile(model, "a100", **settings)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_recomputation_counts_once():
    """Layers that recompute inside their backward have no R, in lists or in the settings of a search."""
    full = pipesched.analytic_profile("gpt2", "h100", [1], recompute="full").profile
    lists = recompute(pipesched.build("1f1b", 2, 4))
    with pytest.raises(pipesched.ArgumentError, match="got R for layers that recompute inside their backward"):
        pipesched.simulate(lists, full)
    with pytest.raises(pipesched.ArgumentError, match="recompute: got yes for layers that recompute inside"):
        pipesched.sweep(["1f1b"], full, num_ranks=[2], num_microbatches=[4], recompute="yes")
    both = pipesched.sweep(["1f1b"], full, num_ranks=[2], num_microbatches=[4], recompute="both")
    assert len(both.outcomes) == 1
