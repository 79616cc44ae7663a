"""What a run is told stands once, in `RunSettings`: the keywords of the library and the fields of a job follow it."""

import inspect
from dataclasses import fields

import pytest

import pipesched
from pipesched.executor import RunSettings
from pipesched.executor.launch import Measure, RunSpec
from pipesched.schedules.common import declared, values_of


def test_a_job_is_what_is_run_and_the_settings():
    own = {"job", "model", "bounds", "inject", "is_finite_checked"}
    assert [field.name for field in fields(RunSpec) if field.name not in own] == list(values_of(RunSettings()))
    assert own < {field.name for field in fields(RunSpec)}


def test_each_setting_says_what_it_means_in_a_sentence():
    settings = declared(RunSettings)
    assert list(settings) == list(values_of(RunSettings()))
    assert all(setting.description.text.endswith(".") for setting in settings.values())


@pytest.mark.parametrize("function", [pipesched.run, pipesched.verify])
def test_a_run_is_measured_as_often_as_a_job_says(function):
    measures = {field.name: field.default for field in fields(Measure)}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("iterations", "warmup", "is_checked", "how"):
            assert parameter.default == measures[name]


def test_a_profile_is_measured_with_the_defaults_of_a_run():
    parameters = inspect.signature(pipesched.profile).parameters
    for name, default in values_of(RunSettings()).items():
        if name in parameters:
            assert parameters[name].default == default, name
