"""`import pipesched`: cheap, and every name in it there."""

import ast
import inspect
import subprocess
import sys

import pytest

import pipesched

HEAVY = ("torch", "simpy", "typer", "rich", "pandas", "matplotlib", "numpy", "pydantic")


def in_child(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_nothing_heavy_is_loaded_before_it_is_needed():
    code = f"""
import sys, pipesched
def loaded(): print([name for name in {HEAVY} if name in sys.modules])
loaded()
pipesched.analytic_profile("gpt", "a100").to_json()
loaded()
pipesched.simulate(pipesched.build("1f1b", 2, 2), pipesched.DeviceCost(1.0, 2.0))
loaded()
"""
    imported, estimated, simulated = map(ast.literal_eval, in_child(code).splitlines())
    assert imported == []
    assert {*estimated} <= {"numpy", "pydantic", "typer", "rich"}
    assert {*simulated} <= {"numpy", "pydantic", "simpy"}


@pytest.mark.slow
def test_options_of_the_command_line_load_no_module_that_reads_arguments():
    loaded = in_child("import sys, pipesched.cli.commands.partition; print(*sys.modules)").split()
    assert "pipesched.questions.partitioning" in loaded
    assert [name for name in loaded if name.startswith("pipesched.workflows.arguments.")] == []


def test_every_name_of_the_library_is_there_and_documented():
    for name in pipesched.__all__:
        assert getattr(pipesched, name).__doc__, name


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
