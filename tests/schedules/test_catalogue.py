import re

import pytest

from pipesched.schedules.catalogue import CATALOGUE, build, find
from pipesched.schedules.check import check
from pipesched.schedules.entry import Parameter
from pipesched.schedules.interleaved import interleaved
from pipesched.schedules.one_f_one_b import one_f_one_b_afp
from pipesched.schedules.op import Step, computes
from pipesched.schedules.schedule import ScheduleError
from tests.schedules.builder_rules import assert_one_line

names = pytest.mark.parametrize("name", CATALOGUE)


@names
def test_every_entry_builds_a_sound_schedule_of_its_name(name):
    schedule = build(name, 4, 8)
    assert schedule.name == name
    assert schedule.num_devices == 4
    assert check(schedule) == ()


@names
def test_every_parameter_is_taken_and_its_default_is_the_builders(name):
    entry = CATALOGUE[name]
    said = {parameter.name: parameter.default for parameter in entry.parameters}
    assert build(name, 4, 8, **said) == build(name, 4, 8)
    base = {"limit": 6.0} if name == "zb_auto" else {}  # with less it has little choice
    others = {"limit": 5.0, "kept": 0.5, "accumulate": 8, "pipelined": 3, "replicas": (1, 1, 2), "pipelines": 4}
    for parameter in entry.parameters:
        other = others[parameter.name] if parameter.name in others else parameter.default + 1
        assert build(name, 4, 8, **{**base, parameter.name: other}).ops != build(name, 4, 8, **base).ops


@names
def test_every_entry_says_what_it_is_and_where_it_comes_from(name):
    entry = CATALOGUE[name]
    assert entry.name == name
    assert_one_line(entry.text)
    assert entry.text
    assert entry.source


@names
def test_asynchronous_are_those_that_step_before_their_last_backward(name):
    row = build(name, 2, 4).ops[0]
    last = max(n for n, op in enumerate(row) for part in computes(op) if part.phase.value in "BIW")
    assert CATALOGUE[name].is_asynchronous == any(isinstance(op, Step) for op in row[:last])


@names
def test_chunks_make_several_stages_per_rank_where_taken_and_are_refused_elsewhere(name):
    if CATALOGUE[name].takes_chunks:
        assert build(name, 2, 4, num_chunks=3).num_stages == 6
        return
    with pytest.raises(ScheduleError) as error:
        build(name, 2, 4, num_chunks=3)
    assert_one_line(str(error.value), f"schedule {name}: got 3 chunks", "interleaved")


@names
def test_bad_counts_are_refused_in_one_line_by_every_entry(name):
    with pytest.raises(ScheduleError) as error:
        build(name, 0, -4)
    assert_one_line(str(error.value), "num_ranks is 0", "num_microbatches is -4")


def test_a_parameter_takes_the_type_of_its_default_and_what_it_says_where_the_builder_finds_it():
    assert Parameter("advance", 1, "").takes == "integer"
    assert Parameter("c", 0.0, "").takes == Parameter("limit", None, "").takes == "number"
    assert Parameter("accumulate", None, "", "integer").takes == "integer"
    assert Parameter("replicas", None, "", "integers").takes == "integers"


def test_parameters_and_chunks_reach_the_builder():
    assert build("1f1b_afp", 3, 6, advance=2) == one_f_one_b_afp(3, 6, advance=2)
    assert build("interleaved", 2, 4, num_chunks=3) == interleaved(2, 4, 3)


@pytest.mark.parametrize(("name", "expected"), [("gpipe", "it takes none"), ("1f1b_afp", "expected advance")])
def test_an_unknown_parameter_is_refused_with_those_that_there_are(name, expected):
    with pytest.raises(ScheduleError) as error:
        build(name, 2, 4, speed=3)
    assert_one_line(str(error.value), f"schedule {name}: got unknown parameter speed", expected)


@pytest.mark.parametrize(
    ("got", "near"),
    [("gpip", "gpipe"), ("1fb1", "1f1b"), ("interleave", "interleaved"), ("pipe-dream", "pipedream")],
)
def test_an_unknown_name_is_refused_with_the_nearest(got, near):
    with pytest.raises(ScheduleError) as error:
        find(got)
    assert_one_line(str(error.value), f"got '{got}'", f"did you mean {near}?", *CATALOGUE)


def test_a_name_near_to_nothing_gets_the_list_only():
    with pytest.raises(ScheduleError) as error:
        build("xyzzy", 2, 4)
    assert_one_line(str(error.value), *CATALOGUE)
    assert not re.search("did you mean", str(error.value))


def test_a_known_name_finds_its_entry():
    assert find("1f1b") is CATALOGUE["1f1b"]
