"""A setting of a question that measures is one field: its option, its keyword and its documentation follow."""

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, get_args

import pytest

import pipesched
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.program import COMMANDS, make_program
from pipesched.executor import EmulationSettings, FaultSettings, Repetitions, RunSettings
from pipesched.executor.launch import Measure, RunSpec
from pipesched.questions import (
    CutSettings,
    EstimateSettings,
    LinkSettings,
    MeasureSettings,
    MessageFacts,
    PartitionSettings,
    ProfileSettings,
    RunFacts,
    TrainSettings,
    WhatIfSettings,
)
from pipesched.schedules.common import Description, declared, faults, values_of
from pipesched.workflows import asks
from pipesched.workflows.measuring import profile_from_runs, profile_links

QUESTIONS = [
    ("run", pipesched.run, (MeasureSettings, EmulationSettings, FaultSettings, CutSettings)),
    ("verify", pipesched.verify, (MeasureSettings, CutSettings)),
    ("verify", pipesched.verify_rounds, (MeasureSettings, CutSettings)),
    ("train", pipesched.train, (TrainSettings,)),
    ("profile", pipesched.profile, (ProfileSettings,)),
    ("profile", pipesched.analytic_profile, (EstimateSettings,)),
    ("profile", pipesched.costs_from_runs, (MessageFacts,)),
    ("profile", profile_from_runs, (RunFacts,)),
    ("what-if", pipesched.what_if, (WhatIfSettings, MessageFacts)),
    ("partition", pipesched.partition, (PartitionSettings,)),
    ("profile-links", profile_links, (LinkSettings,)),
]
RECORDS = [*dict.fromkeys(record for _, _, records in QUESTIONS for record in records), Repetitions]


def options_of(command):

    return {name for option in make_program().get_command(None, command).params for name in option.opts}


@pytest.mark.parametrize(
    ("command", "function", "records"), QUESTIONS, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_setting_is_an_option_a_keyword_and_a_line_of_the_documentation(command, function, records):
    assert command in COMMANDS
    options, parameters = options_of(command), inspect.signature(function).parameters
    text = " ".join(function.__doc__.split())
    for record in records:
        for name, setting in declared(record).items():
            assert setting.option in options or not setting.description.has_option, name
            assert parameters[name].default == setting.default
            assert parameters[name].annotation == setting.kind
            assert f"{name}: {' '.join(setting.description.text.split())}" in text


@pytest.mark.parametrize("record", RECORDS)
def test_each_setting_has_a_sentence_and_a_valid_default(record):
    for name, setting in declared(record).items():
        assert setting.description.text[0].isupper(), name
        assert setting.description.text.endswith("."), name
        assert setting.fault(setting.default) is None, name
    assert [*faults(record())] == []


@pytest.mark.parametrize("kind", [MeasureSettings, TrainSettings])
def test_a_new_field_is_an_option_and_a_keyword(kind):
    @dataclass(frozen=True, kw_only=True)
    class Longer(kind):
        num_naps: Annotated[int, Description("Naps between two steps.", least=0)] = 0

    @grouped
    def command(settings: Longer = Longer()):
        return settings

    @dataclass(frozen=True)
    class Question(Longer):
        model: str

    @asks(Question)
    def sleep(question: Question) -> int:
        """Sleep."""
        return question.num_naps

    option = get_args(inspect.signature(command).parameters["num_naps"].annotation)[1]
    assert (option.default, option.help) == ("--naps", "Naps between two steps.")
    assert sleep("mlp", num_naps=3) == 3
    assert "num_naps: Naps between two steps." in sleep.__doc__


def test_a_job_has_the_settings_of_its_question():
    own = {"job", "model", "bounds"}
    assert {field.name for field in fields(RunSpec)} - own == {*declared(RunSettings), *declared(FaultSettings)}
    assert {*declared(Repetitions), *declared(EmulationSettings)} < {field.name for field in fields(Measure)}
    measured = MeasureSettings(lr=0.5, iterations=3)
    assert values_of(measured, RunSettings) | values_of(measured, Repetitions) == values_of(measured)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (["kill:rank=0,op=0F0"], None),
        ((), None),
        ("kill", "got 'kill', expected a list of texts; try ['kill']"),
        ([3], "got 3, expected a text"),
        (None, "got None, expected a list of texts"),
    ],
)
def test_a_list_of_texts_is_no_text(value, fault):
    assert declared(FaultSettings)["inject"].fault(value) == fault
