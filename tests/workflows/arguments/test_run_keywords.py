"""What a run is told stands once, in `RunSettings`: the keywords of the library and the fields of a job follow it."""

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest

import pipesched
from pipesched.executor import RunSettings, setting_choices
from pipesched.executor.launch import Measure, RunSpec
from pipesched.workflows.arguments import RunKeywords


def test_the_keywords_of_a_run_are_its_settings():
    assert get_type_hints(RunKeywords) == get_type_hints(RunSettings)


def test_a_job_is_what_is_run_and_the_settings():
    own = {"job", "model", "bounds", "inject", "is_finite_checked"}
    assert [field.name for field in fields(RunSpec) if field.name not in own] == list(RunSettings().values())
    assert own < {field.name for field in fields(RunSpec)}


def test_each_setting_says_what_it_means_in_a_sentence():
    for name, hint in get_type_hints(RunSettings, include_extras=True).items():
        assert hint.__metadata__[0].endswith("."), name


def test_settings_that_are_words_have_their_choices():
    choices = setting_choices()
    assert choices["backend"] == ("auto", "gloo", "nccl")
    assert choices["transport"] == ("auto", "processes", "streams")
    assert choices["compression"] == (None, "half")
    assert set(choices) == {"optimizer", "dtype", "device", "transport", "backend", "compression", "averaging"}


@pytest.mark.parametrize("function", [pipesched.run, pipesched.verify])
def test_a_run_is_measured_as_often_as_a_job_says(function):
    measures = {field.name: field.default for field in fields(Measure)}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("iterations", "warmup", "is_checked", "how"):
            assert parameter.default == measures[name]


def test_a_profile_is_measured_with_the_defaults_of_a_run():
    parameters = inspect.signature(pipesched.profile).parameters
    for name, default in RunSettings().values().items():
        if name in parameters:
            assert parameters[name].default == default, name
