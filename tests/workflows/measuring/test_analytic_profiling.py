"""`pipesched.analytic_profile`: costs of a GPU that is not there, and what of it makes no sense."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from matplotlib.figure import Figure

import pipesched
from pipesched.workflows import ArgumentError

estimate: Any = partial(pipesched.analytic_profile, "gpt:layers=4,width=512,heads=8,context=256,vocab=512")
GPU = pipesched.Gpu("mine", 10**10, {"float32": 1e13}, 1e12, 1e11, 0.5, "mine")


@pytest.mark.slow
def test_an_estimate_is_a_profile_that_everything_takes(tmp_path):
    estimated = estimate("h100", [4, 1, 1], dtype="bfloat16", tensor_parallel=2)
    assert estimated.profile.microbatch_sizes == (1, 4)
    assert "h100 of 79.18 GiB, estimated: 794.2 TFLOP/s in bfloat16" in estimated.table().caption
    assert len(estimated.to_frame()) == 2 * 6
    assert isinstance(estimated.plot(), Figure)
    estimated.save(tmp_path / "gpt.json")
    assert pipesched.load_profile(tmp_path / "gpt.json") == estimated.profile

    simulated = pipesched.simulate(
        pipesched.build("zb_h1", 2, 4),
        pipesched.Setup(tmp_path / "gpt.json", microbatch_size=2),
    )
    assert "estimated" in simulated.costs.origin
    planned = pipesched.plan(estimated.profile, batch_size=8, num_devices=2, top=1)
    assert planned.plan is not None
    assert "estimated" in planned.plan.origin


def test_a_gpu_and_a_share_of_its_peak_may_be_given():
    whole, half = (estimate(GPU, [1], efficiency=share).profile for share in (1.0, 0.5))
    product_s = 2 * 256 * 512 * 3 * 512 / 1e13
    assert half.layers[1].measurements[0].forward_s > whole.layers[1].measurements[0].forward_s + product_s
    assert estimate(GPU, [1]).profile.layers == half.layers


def test_the_names_of_gpus_are_those_of_the_table():
    from pipesched.cli.commands.profile import _GPUS
    from pipesched.profiles.io import gpu_names

    assert ", ".join(gpu_names()) == _GPUS
    assert all(f"``{name}``" in pipesched.analytic_profile.__doc__ for name in gpu_names())


@pytest.mark.slow
def test_an_estimate_loads_no_torch():
    code = """
import sys, pipesched
pipesched.analytic_profile("gpt", "a100").to_json()
print([name for name in ("torch", "simpy", "pandas", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


WRONG = [
    ("gpu: got 'h10', expected one of a10, a100", lambda: estimate("h10")),
    ("gpu: got None, expected one of", lambda: estimate(None)),
    ("dtype: got 'bfloat16', expected one of float16, float32", lambda: estimate("v100", dtype="bfloat16")),
    ("dtype: got 'float64', expected one of", lambda: estimate("a100", dtype="float64")),
    ("optimizer: got 'lion', expected one of sgd", lambda: estimate("a100", optimizer="lion")),
    ("microbatch_sizes: got 0, expected at least 1", lambda: estimate("a100", [1, 0])),
    ("microbatch_sizes: got 1000", lambda: estimate("a100", [1, 10**400])),
    ("microbatch_sizes: got an empty list", lambda: estimate("a100", [])),
    ("tensor_parallel: got 0, expected at least 1", lambda: estimate("a100", tensor_parallel=0)),
    ("tensor_parallel: got 3, expected a divisor of heads=8", lambda: estimate("a100", tensor_parallel=3)),
    ("sequence_parallel: got it with one GPU", lambda: estimate("a100", sequence_parallel=True)),
    ("selective_recompute: got 1, expected True or False", lambda: estimate("a100", selective_recompute=1)),
    (
        "flash_attention: got it with `selective_recompute`",
        lambda: estimate("a100", flash_attention=True, selective_recompute=True),
    ),
    ("efficiency: got 0, expected a number above 0", lambda: estimate("a100", efficiency=0)),
    ("efficiency: got 1.5, expected a share of the peak", lambda: estimate("a100", efficiency=1.5)),
    ("model: got 3, expected the name of a GPT", lambda: pipesched.analytic_profile(3, "a100")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("message", "call"), WRONG)
def test_what_makes_no_sense_is_named(message, call):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("conv", "model 'conv': got another than gpt"),
        ("gpt:depth=2", "model 'gpt:depth=2': got an unknown argument 'depth', expected one of layers, width, heads"),
        ("gpt:width=30", "model 'gpt:width=30': width: got 30, expected a multiple of heads=8; try width=32"),
        (f"gpt:width={10**400}", f"model 'gpt:width={10**400}': width: got {10**400}, expected at most 2147483647"),
        ("gpt:vocab=0", "model 'gpt:vocab=0': vocab: got 0, expected at least 1"),
    ],
)
def test_a_model_that_is_no_gpt_is_named(model, message):
    with pytest.raises(pipesched.ProfileError) as caught:
        pipesched.analytic_profile(model, "a100")
    assert str(caught.value).startswith(message)
