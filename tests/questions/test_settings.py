"""A setting is declared once: its option, its keyword, its check and its documentation follow."""

import inspect
import re
import sys
from dataclasses import MISSING, dataclass
from typing import Annotated, Literal, get_args

import numpy as np
import pytest

import pipesched as library
from pipesched.cli.main import main
from pipesched.cli.options.option_groups import grouped, is_size, read_setting, setting_option
from pipesched.executor import RunSettings
from pipesched.questions import (
    CostSettings,
    OptimizeSettings,
    PlanSettings,
    PredictionSettings,
    SimulateSettings,
    SweepSettings,
    TuneSettings,
)
from pipesched.schedules.common import Description, declared, faults, option_name, values_of
from pipesched.simulator import NetworkOptions
from pipesched.workflows import ArgumentError, asks, require_settings

QUESTIONS = {
    "simulate": SimulateSettings,
    "optimize": OptimizeSettings,
    "sweep": SweepSettings,
    "tune": TuneSettings,
    "plan": PlanSettings,
}
DECLARED = [RunSettings, NetworkOptions, CostSettings, PredictionSettings, *QUESTIONS.values()]


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
    flags = {name: option.default for name, (_, option) in told.items()}
    assert flags == {
        "num_eggs": "--eggs",
        "heat": "--heat",
        "boil_s": "--boil",
        "is_salted": "--salted",
        "pan_bytes": "--pan-bytes",
        "settings_file": "--settings",
    }
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


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_setting_of_a_question_is_in_the_help_the_signature_and_the_documentation(name, monkeypatch, capsys):
    function, settings = getattr(library, name), declared(QUESTIONS[name])
    monkeypatch.setattr(sys, "argv", ["pipesched", name, "--help"])
    with pytest.raises(SystemExit):
        main()
    parameters, help_page = inspect.signature(function).parameters, capsys.readouterr().out
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_page))
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert len(positional) <= 2
    for key, setting in settings.items():
        assert parameters[key].default == (inspect.Parameter.empty if setting.default is MISSING else setting.default)
        assert setting.description.text in " ".join(function.__doc__.split())
        assert {setting.option, setting.description.short or setting.option} <= options


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


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([], "got an empty list, expected at least one; try [1]"),
        ("4", "got '4', expected an integer of at least 1"),
        ([4, "8"], "got '8', expected an integer of at least 1"),
        ([4, 0], "got 0, expected at least 1"),
        (np.array(4.5), "got ndarray(..), expected a list"),
        (iter([4]), "got list_iterator(..), expected a list"),
        (None, "got None, expected an integer of at least 1"),
    ],
)
def test_counts_that_are_none_are_refused(value, fault):
    assert declared(SweepSettings)["num_ranks"].fault(value) == fault


def test_counts_are_lists_and_ranges_on_the_command_line():
    setting = declared(SweepSettings)["num_ranks"]
    assert read_setting(setting, "8:64:x2,3") == (3, 8, 16, 32, 64)
    with pytest.raises(ArgumentError, match="--ranks: got '0', expected whole numbers of at least 1"):
        read_setting(setting, "0")


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
