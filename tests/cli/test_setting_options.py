"""The options of a run are made of its settings: name, default, and what the help says."""

import inspect
from typing import get_args

import pytest

from pipesched.cli.commands.plan import ModelOptions
from pipesched.cli.commands.profile import LayerOptions
from pipesched.cli.commands.tune import setting_words
from pipesched.cli.options.option_groups import grouped, setting_option
from pipesched.executor import RunSettings
from pipesched.executor.launch import Measure, job_from_json
from pipesched.questions import MeasureSettings, TrainSettings
from pipesched.schedules.common import declared, values_of

GROUPS = [MeasureSettings, TrainSettings, ModelOptions, LayerOptions]
SETTINGS = declared(RunSettings)


def options_of(group):
    def command(options):
        raise AssertionError("not called")

    command.__annotations__["options"] = group
    return inspect.signature(grouped(command)).parameters


@pytest.mark.parametrize("group", GROUPS)
def test_an_option_that_is_not_given_leaves_a_setting_as_it_is_in_the_library(group):
    parameters = options_of(group)
    assert "save" not in parameters, "it has no option"
    for name, default in values_of(RunSettings()).items():
        if not hasattr(group(), name):
            continue
        assert getattr(group(), name) == default
        if name in parameters and name != "is_pinned":
            assert parameters[name].default == default
    told = {name for name in parameters if name in SETTINGS and name != "is_pinned"}
    told -= {name for name, text in getattr(group, "shown", {}).items() if text is not None}
    for name in told:
        assert get_args(parameters[name].annotation)[1].help == SETTINGS[name].description.text


def test_a_flag_turns_off_what_is_on(pipesched, folder):
    assert setting_option(SETTINGS["is_pinned"])[1] is False
    for flag, is_pinned in (("", True), ("--no-pin", False)):
        assert pipesched(f"run -s gpipe -p 2 -m 2 --uniform f=1,b=2 --job job.json {flag}").code == 0
        assert job_from_json((folder / "job.json").read_text(), "job.json").is_pinned is is_pinned
        (folder / "job.json").unlink()


def test_the_words_of_a_setting_are_its_option(pipesched, folder):
    given = {"timeout_s": 7.0, "is_pinned": False, "iterations": 3, "is_checked": False, "lr": 0.5, "optimizer": "sgd"}
    words = " ".join(word for name, value in given.items() for word in setting_words(name, value))
    assert pipesched(f"run -s gpipe -p 2 -m 2 --uniform f=1,b=2 --job job.json {words}").code == 0
    job = job_from_json((folder / "job.json").read_text(), "job.json")
    assert isinstance(job.job, Measure)
    assert (job.timeout_s, job.is_pinned, job.lr, job.optimizer) == (7.0, False, 0.5, "sgd")
    assert (job.job.iterations, job.job.is_checked) == (3, False)
