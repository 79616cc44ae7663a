"""`import pipesched`: cheap, and every name in it there."""

import inspect
import subprocess
import sys

import pytest

import pipesched

HEAVY = ("torch", "simpy", "typer", "rich", "pandas", "matplotlib", "numpy", "pydantic")


def in_child(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_importing_the_library_loads_nothing_heavy():
    loaded = in_child(f"import sys, pipesched; print([name for name in {HEAVY} if name in sys.modules])")

    assert loaded.strip() == "[]"


def test_every_name_of_the_library_is_there_and_documented():
    for name in pipesched.__all__:
        assert getattr(pipesched, name).__doc__, name


@pytest.mark.slow
def test_simulating_loads_no_torch_and_no_terminal():
    code = """
import sys, pipesched
pipesched.simulate(pipesched.build("1f1b", 2, 2), pipesched.DeviceCost(1.0, 2.0))
print([name for name in ("torch", "typer", "rich", "pandas", "matplotlib") if name in sys.modules])
"""
    assert in_child(code).strip() == "[]"


def test_an_argument_that_several_functions_take_is_the_same_in_each():
    """A function shows all its arguments with their defaults; here they are held to each other."""
    functions = [
        pipesched.compare, pipesched.check, pipesched.versions, pipesched.run, pipesched.train, pipesched.verify,
        pipesched.verify_rounds, pipesched.what_if, pipesched.tune, pipesched.plan,
    ]  # fmt: skip
    names = ["num_ranks", "num_microbatches", "num_chunks", "parameters", "partition"]
    signatures = [inspect.signature(function).parameters for function in functions]
    for name in names:
        shared = [parameters[name] for parameters in signatures if name in parameters]
        assert len(shared) > 1, name
        assert set(shared) == {shared[0]}, name
