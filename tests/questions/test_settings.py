"""A setting is declared once: its option, its keyword, its check and its documentation follow."""

import inspect
import re
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Literal, get_args

import numpy as np
import pytest

import pipesched as library
from pipesched.cli.options.option_groups import grouped, is_size, read_setting, setting_option
from pipesched.cli.program import make_program
from pipesched.executor import EmulationSettings, FaultSettings, Repetitions, RunSettings
from pipesched.executor.launch import Measure, RunSpec
from pipesched.questions import (
    CostSettings,
    CutSettings,
    EstimateSettings,
    LinkSettings,
    MeasureSettings,
    MessageFacts,
    OptimizeSettings,
    PartitionSettings,
    PlanSettings,
    PredictionSettings,
    ProfileSettings,
    RunFacts,
    SimulateSettings,
    SweepSettings,
    TrainSettings,
    TuneSettings,
    WhatIfSettings,
)
from pipesched.schedules.common import Description, declared, faults, option_name, values_of
from pipesched.simulator import NetworkOptions
from pipesched.workflows import ArgumentError, asks, require_settings
from pipesched.workflows.measuring import profile_from_runs, profile_links

QUESTIONS = [
    ("simulate", library.simulate, (SimulateSettings,)),
    ("optimize", library.optimize, (OptimizeSettings,)),
    ("sweep", library.sweep, (SweepSettings,)),
    ("tune", library.tune, (TuneSettings,)),
    ("plan", library.plan, (PlanSettings,)),
    ("run", library.run, (MeasureSettings, EmulationSettings, FaultSettings, CutSettings)),
    ("verify", library.verify, (MeasureSettings, CutSettings)),
    ("verify", library.verify_rounds, (MeasureSettings, CutSettings)),
    ("train", library.train, (TrainSettings,)),
    ("profile", library.profile, (ProfileSettings,)),
    ("profile", library.analytic_profile, (EstimateSettings,)),
    ("profile", library.costs_from_runs, (MessageFacts,)),
    ("profile", profile_from_runs, (RunFacts,)),
    ("what-if", library.what_if, (WhatIfSettings, MessageFacts)),
    ("partition", library.partition, (PartitionSettings,)),
    ("profile-links", profile_links, (LinkSettings,)),
]
WITH_A_COUNT = (library.verify_rounds, library.analytic_profile, library.partition)
RECORDS = dict.fromkeys(record for _, _, records in QUESTIONS for record in records)
DECLARED = [*RECORDS, RunSettings, Repetitions, NetworkOptions, CostSettings, PredictionSettings]


@dataclass(frozen=True, kw_only=True)
class Kitchen:
    num_eggs: Annotated[int, Description("Eggs in the pan.", least=1, most=12)] = 2
    heat: Annotated[Literal["low", "high"] | None, Description("Heat; see `num_eggs`.")] = None
    boil_s: Annotated[float, Description("Boiling time [s].", least=0.0)] = 300.0
    is_salted: Annotated[bool, Description("Add salt.")] = False
    pan_bytes: Annotated[int | None, Description("Size of the pan.", least=1)] = None
    note: str = "no setting"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"num_eggs": 0}, "num_eggs: got 0, expected at least 1"),
        ({"num_eggs": 13}, "num_eggs: got 13, expected at most 12"),
        ({"num_eggs": 1.5}, "num_eggs: got 1.5, expected an integer of at least 1"),
        ({"num_eggs": True}, "num_eggs: got True, expected an integer of at least 1"),
        ({"heat": "medium"}, "heat: got 'medium', expected one of low, high, None"),
        ({"heat": ["low"]}, "heat: got list(..), expected one of low, high, None"),
        ({"boil_s": -1.0}, "boil_s: got -1.0, expected a finite number of at least 0"),
        ({"boil_s": float("inf")}, "boil_s: got inf, expected a finite number"),
        ({"boil_s": float("nan")}, "boil_s: got nan, expected a finite number of at least 0"),
        ({"boil_s": 10**400}, "boil_s: got 1000"),
        ({"is_salted": 1}, "is_salted: got 1, expected True or False"),
        ({"pan_bytes": "1GB"}, "pan_bytes: got '1GB', expected an integer of at least 1"),
    ],
)
def test_an_invalid_value_is_named_with_its_limits(given, fault):
    problems = [*faults(Kitchen(**given))]
    assert len(problems) == 1
    assert problems[0].startswith(fault)
    with pytest.raises(ArgumentError) as raised:
        require_settings(Kitchen(**given))
    assert str(raised.value) == problems[0]


def test_valid_values_have_no_fault_and_numbers_of_numpy_become_pythons():
    soft = Kitchen(boil_s=np.float32(0.5))
    require_settings(soft)
    assert (soft.boil_s, type(soft.boil_s)) == (0.5, float)
    kitchen = Kitchen(num_eggs=np.int64(3), heat="low", boil_s=7, pan_bytes=4096)
    require_settings(kitchen)
    assert [*faults(kitchen)] == []
    assert type(kitchen.num_eggs) is int
    assert values_of(kitchen) == {"num_eggs": 3, "heat": "low", "boil_s": 7, "is_salted": False, "pan_bytes": 4096}


def test_one_declaration_is_an_option_a_keyword_and_a_line_of_the_documentation():
    @grouped
    def command(kitchen: Kitchen):
        return kitchen

    options = inspect.signature(command).parameters
    told = {name: get_args(option.annotation) for name, option in options.items() if name != "note"}
    assert {name: option.default for name, (_, option) in told.items()} == {
        "num_eggs": "--eggs", "heat": "--heat", "boil_s": "--boil", "is_salted": "--salted",
        "pan_bytes": "--pan-bytes", "settings_file": "--settings",
    }  # fmt: skip
    assert told["heat"][1].help == "Heat; see --eggs."
    assert (told["num_eggs"][1].min, told["num_eggs"][1].max, options["num_eggs"].default) == (1, 12, 2)
    made = command(num_eggs=5, heat=None, boil_s=1.0, is_salted=True, pan_bytes="2KiB", note="")
    assert (made.num_eggs, made.is_salted, made.pan_bytes) == (5, True, 2048)

    @dataclass(frozen=True)
    class Question(Kitchen):
        guests: int

    @asks(Question)
    def cook(question: Question) -> str:
        """Cook.

        Raises:
            ArgumentError: No guests.
        """
        return f"{question.guests} guests, {question.num_eggs} eggs"

    assert cook(3, num_eggs=6) == "3 guests, 6 eggs"
    with pytest.raises(
        TypeError, match=r"cook: got an unexpected keyword argument 'eggs', expected cook\(guests, \.\.\)"
    ):
        cook(3, eggs=6)
    with pytest.raises(TypeError, match="cook: missing a required argument: 'guests'"):
        cook()
    assert list(inspect.signature(cook).parameters) == ["guests", *inspect.signature(Kitchen).parameters]
    assert "num_eggs: Eggs in the pan." in cook.__doc__
    assert cook.__doc__.index("Eggs") < cook.__doc__.index("Raises:")


def invalid_values(setting):
    """Return values of a type that a setting does not have, and numbers beyond its limits."""
    kinds, description = get_args(setting.kind) or (setting.kind,), setting.description
    if int not in kinds and float not in kinds:
        return [object(), 2j]
    beyond = [least - 1 for least in (description.least,) if least is not None]
    beyond += [2 * most for most in (description.most,) if most is not None]
    return [*beyond, object(), True, float("nan"), float("inf"), float("-inf"), *([1.5] if float not in kinds else [])]


@pytest.mark.parametrize("record", DECLARED)
def test_each_setting_refuses_other_types_and_numbers_beyond_its_limits_as_its_option_does(record):
    for name, setting in declared(record).items():
        for value in invalid_values(setting):
            assert re.fullmatch("got .*, expected .*", setting.fault(value) or ""), (name, value)
        option = get_args(setting_option(setting)[0])[1]
        is_text = is_size(setting) or setting.is_list
        limits = (None, None) if is_text else (setting.description.least, setting.description.most)
        assert (option.min, option.max) == limits, name


@pytest.mark.parametrize("record", DECLARED)
def test_each_setting_has_a_sentence_and_a_valid_default(record):
    required = {}
    for name, setting in declared(record).items():
        assert setting.description.text[0].isupper(), name
        assert setting.description.text.endswith("."), name
        if setting.default is MISSING:
            required[name] = 4
        else:
            assert setting.fault(setting.default) is None, name
    assert [*faults(record(**required))] == []


@pytest.mark.parametrize(("command", "function", "records"), QUESTIONS)
def test_each_setting_is_an_option_a_keyword_and_a_line_of_the_documentation(command, function, records):
    options = {name for option in make_program().get_command(None, command).params for name in option.opts}
    parameters, text = inspect.signature(function).parameters, " ".join(function.__doc__.split())
    num_positional = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
    assert num_positional <= 2 + (function in WITH_A_COUNT)
    for name, setting in ((name, setting) for record in records for name, setting in declared(record).items()):
        description = setting.description
        assert {setting.option, description.short or setting.option} <= options or not description.has_option, name
        assert parameters[name].default == (inspect.Parameter.empty if setting.default is MISSING else setting.default)
        assert parameters[name].annotation == setting.kind
        assert f"{name}: {' '.join(description.text.split())}" in text


def test_a_job_has_the_settings_of_its_question():
    own = {"job", "model", "bounds"}
    assert {field.name for field in fields(RunSpec)} - own == {*declared(RunSettings), *declared(FaultSettings)}
    assert {*declared(Repetitions), *declared(EmulationSettings)} < {field.name for field in fields(Measure)}
    measured = MeasureSettings(lr=0.5, iterations=3)
    assert values_of(measured, RunSettings) | values_of(measured, Repetitions) == values_of(measured)


def test_a_setup_has_the_declared_settings():
    settings = {**declared(CostSettings), **declared(PredictionSettings)}
    assert settings.keys() < inspect.signature(library.Setup).parameters.keys()


@pytest.mark.parametrize(
    ("value", "plain"),
    [(4, (4,)), ([4, 8], (4, 8)), (np.int64(4), (4,)), (np.array([4, 8]), (4, 8)), (range(1, 3), (1, 2))],
)
def test_one_count_or_several_become_a_tuple_of_pythons_integers(value, plain):
    settings = SweepSettings(num_ranks=value, num_microbatches=1)
    require_settings(settings)
    assert settings.num_ranks == plain
    assert {*map(type, settings.num_ranks)} == {int}


COUNTS, TEXTS = declared(SweepSettings)["num_ranks"], declared(FaultSettings)["inject"]


@pytest.mark.parametrize(
    ("setting", "value", "fault"),
    [
        (COUNTS, [], "got an empty list, expected at least one; try [1]"),
        (COUNTS, "4", "got '4', expected an integer of at least 1"),
        (COUNTS, [4, "8"], "got '8', expected an integer of at least 1"),
        (COUNTS, [4, 0], "got 0, expected at least 1"),
        (COUNTS, np.array(4.5), "got ndarray(..), expected a list"),
        (COUNTS, iter([4]), "got list_iterator(..), expected a list"),
        (COUNTS, None, "got None, expected an integer of at least 1"),
        (TEXTS, ["kill:rank=0,op=0F0"], None),
        (TEXTS, (), None),
        (TEXTS, "kill", "got 'kill', expected a list of texts; try ['kill']"),
        (TEXTS, [3], "got 3, expected a text"),
        (TEXTS, None, "got None, expected a list of texts"),
    ],
)
def test_lists_of_another_kind_are_refused(setting, value, fault):
    assert setting.fault(value) == fault


def test_counts_are_lists_and_ranges_on_the_command_line():
    assert read_setting(COUNTS, "8:64:x2,3") == (3, 8, 16, 32, 64)
    with pytest.raises(ArgumentError, match="--ranks: got '0', expected whole numbers of at least 1"):
        read_setting(COUNTS, "0")


@pytest.mark.parametrize(
    ("name", "option"),
    [("num_runs", "--runs"), ("timeout_s", "--timeout"), ("convert_bytes_per_s", "--convert-bytes-per-s")],
)
def test_an_option_is_the_name_without_its_kind_and_unit(name, option):
    assert option_name(name) == option


def test_a_name_without_counts_says_how_to_build_it():
    with pytest.raises(ArgumentError, match=r"try pipesched.build\('1f1b', num_ranks=4, num_microbatches=8\)"):
        library.simulate("1f1b", library.DeviceCost(1.0, 2.0))


def test_a_setup_limits_the_memory_of_every_device():
    lists, costs = library.build("1f1b", 2, 4), library.DeviceCost(1.0, 2.0, saved_bytes=10)
    assert library.simulate(lists, costs).fits is None
    assert library.simulate(lists, library.Setup(costs, limit_bytes=20)).fits is True
    assert library.simulate(lists, library.Setup(costs, limit_bytes=19)).fits is False
    with pytest.raises(ArgumentError, match="limit_bytes: got 0, expected at least 1"):
        library.Setup(costs, limit_bytes=0)
