import json
import re
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import CATALOGUE, InFlightRule, Parameter, build, build_generated, find, simplest_case
from pipesched.schedules.builders.interleaved import interleaved
from pipesched.schedules.ops import Phase, Step, computes, stages_of
from pipesched.schedules.transforms import training_run
from tests.schedules.builder_rules import assert_one_line, refused

names = pytest.mark.parametrize("name", CATALOGUE)


@names
def test_every_parameter_is_taken_and_its_default_is_the_builders(name):
    entry = CATALOGUE[name]
    said = {parameter.name: parameter.default for parameter in entry.parameters}
    assert build(name, 4, 8, **said) == build(name, 4, 8)
    base = {"limit": 6.0} if name == "zb_auto" else {}  # with less it has little choice
    lists = build(name, 4, 8, **base).ops
    for parameter in entry.parameters:
        assert any(made != lists for made in lists_with_others(name, parameter, base)), parameter


def lists_with_others(name, parameter, base):
    """Yield the lists with other values of a parameter, without the values that are refused."""
    others = {"integer": (3, 8), "number": (5.0,), "integers": ((1, 1, 2),)}[parameter.takes]
    if parameter.default is not None:
        others = (parameter.default + 1, parameter.default * 2, parameter.default / 2)
    for other in others:
        with suppress(ScheduleError):
            yield build(name, 4, 8, **{**base, parameter.name: other}).ops


@names
def test_every_entry_says_what_it_is_and_where_it_comes_from_and_what_a_rank_holds(name):
    entry, schedule = CATALOGUE[name], build(name, 4, 8)
    assert entry.name == schedule.name == name
    assert schedule.num_devices == 4
    assert_one_line(entry.text)
    assert entry.text
    assert entry.source
    assert {len(stages_of(row)) for row in schedule.ops} == {entry.chunks_with(None, {})}
    if name not in ("data_parallel", "1f1b_rr", "avgpipe"):  # as many replicas or pipelines as they are given
        assert schedule.num_stages * entry.replicas == schedule.num_ranks * entry.chunks_with(None, {})
    row = schedule.ops[0]
    last = max(n for n, op in enumerate(row) for part in computes(op) if part.phase.value in "BIW")
    assert entry.traits.is_asynchronous == any(isinstance(op, Step) for op in row[:last])


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE.values() if entry.in_flight])
def test_micro_batches_in_flight_are_what_the_entry_says(name):
    rule, num_ranks, num_microbatches = CATALOGUE[name].in_flight, 5, 15
    back = (Phase.BACKWARD, Phase.BACKWARD_INPUT)
    for rank, row in enumerate(build(name, num_ranks, num_microbatches).ops):
        count = most = 0
        for part in (part for op in row for part in computes(op)):
            count += (part.phase is Phase.FORWARD) - (part.phase in back)
            most = max(most, count)
        expected = num_microbatches if rule is InFlightRule.ALL else min(num_microbatches, num_ranks - rank)
        assert most == expected == rule.most(num_ranks, rank, num_microbatches)


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE.values() if entry.case_of])
def test_a_special_case_has_the_lists_of_the_schedule_that_it_is_a_case_of(name):
    case = CATALOGUE[name].case_of
    rest = {parameter.name: 2 for parameter in CATALOGUE[name].parameters}
    assert build(name, 3, 8, **rest).ops == build(case.name, 3, 8, **case.settings, **rest).ops
    assert simplest_case(case.name, {**case.settings, **rest}) == (CATALOGUE[name], rest)
    assert simplest_case(name, rest) == (CATALOGUE[name], rest)


@names
def test_chunks_make_several_stages_per_rank_where_taken_and_are_refused_elsewhere(name):
    if CATALOGUE[name].traits.takes_chunks:
        assert build(name, 2, 4, num_chunks=3).num_stages == 6
        return
    has = max(len(stages_of(row)) for row in build(name, 4, 8).ops)
    assert build(name, 4, 8, num_chunks=has) == build(name, 4, 8)
    with refused(f"schedule {name}: got 3 chunks", "interleaved"):
        build(name, 2, 4, num_chunks=3)


@names
def test_bad_counts_are_refused_in_one_line_by_every_entry(name):
    takes_chunks = CATALOGUE[name].traits.takes_chunks
    with pytest.raises(ScheduleError) as error:
        build(name, 0, -4, **({"num_chunks": 0} if takes_chunks else {}))
    assert_one_line(
        str(error.value), "num_ranks is 0", "num_microbatches is -4", *(["num_chunks is 0"] if takes_chunks else [])
    )


def test_a_parameter_takes_the_type_of_its_default_and_what_it_says_where_the_builder_finds_it():
    assert Parameter("advance", 1, "").takes == "integer"
    assert Parameter("c", 0.0, "").takes == Parameter("limit", None, "").takes == "number"
    assert Parameter("accumulate", None, "", "integer").takes == "integer"
    assert Parameter("replicas", None, "", "integers").takes == "integers"


@pytest.mark.parametrize(("name", "expected"), [("gpipe", "it takes none"), ("1f1b_afp", "expected advance")])
def test_an_unknown_parameter_is_refused_with_those_that_there_are(name, expected):
    with refused(f"schedule {name}: got unknown parameter speed", expected):
        build(name, 2, 4, speed=3)


@pytest.mark.parametrize(
    ("got", "near"),
    [("gpip", "gpipe"), ("1fb1", "1f1b"), ("interleave", "interleaved"), ("pipe-dreams", "pipedream")],
)
def test_an_unknown_name_is_refused_with_the_nearest(got, near):
    with refused(f"got '{got}'", f"did you mean {near}?"):
        find(got)


def test_a_name_near_to_nothing_gets_the_list_only():
    with pytest.raises(ScheduleError) as error:
        build("xyzzy", 2, 4)
    assert_one_line(str(error.value), *CATALOGUE)
    assert not re.search("did you mean", str(error.value))


def test_stages_per_rank_follow_the_waves():
    assert build("hanayo", 2, 4, num_chunks=6, waves=3) == build("hanayo", 2, 4, waves=3)
    with refused("got 2 chunks, expected 4 with waves=2"):
        build("hanayo", 2, 4, num_chunks=2)


ELSEWHERE = {  # torch 2.6 to 2.13, distributed/pipelining/schedules.py; Megatron-LM's README; the papers
    "gpipe": ("GPipe", "ScheduleGPipe"),
    "1f1b": ("1F1B", "Schedule1F1B", "PipeDream-Flush"),
    "interleaved": ("Interleaved1F1B", "ScheduleInterleaved1F1B", "interleaved_1f1b", "Interleaved 1F1B"),
    "looped_bfs": ("LoopedBFS", "ScheduleLoopedBFS", "Looped-BFS"),
    "interleaved_zb": ("InterleavedZeroBubble", "ScheduleInterleavedZeroBubble", "interleaved_zero_bubble"),
    "zbv": ("ZBV", "ZBVZeroBubble", "ScheduleZBVZeroBubble", "ZBV_ZeroBubble"),
    "dualpipe_v": ("DualPipeV", "ScheduleDualPipeV"),
    "dualpipe": ("DualPipe",),
    "zb_h1": ("ZB-H1", "ZBH1"),
    "pipedream_2bw": ("PipeDream-2BW",),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_of_elsewhere_in_any_case_builds_our_schedule_by_our_name(name):
    for written in (form for alias in ELSEWHERE[name] for form in (alias, alias.upper(), alias.lower())):
        assert find(written) is CATALOGUE[name]
        assert build(written, 4, 8) == build(name, 4, 8)
        assert build_generated(written, 4, 8).name == name
        assert training_run(written, 4, 8, 8).name == name


def test_every_schedule_that_torch_has_by_name_is_found():
    from torch.distributed.pipelining import schedules

    class_names = [
        name for name, value in vars(schedules).items() if isinstance(value, type) and name.startswith("Schedule")
    ]
    assert len(class_names) >= 5
    for name in class_names:
        assert schedules.get_schedule_class(name.removeprefix("Schedule")).__name__ == name
        assert find(name) is find(name.removeprefix("Schedule"))


def test_no_name_stands_for_two_schedules():
    plain = [
        (re.sub("[-_ ]", "", name.lower()), entry.name)
        for entry in CATALOGUE.values()
        for name in (entry.name, *entry.aliases)
    ]
    assert len({name for name, _ in plain}) == len(set(plain))


@pytest.mark.parametrize("builder", [build, build_generated])
@pytest.mark.parametrize(
    ("name", "counts", "settings", "said"),
    [
        ("gpipe", (2, True), {}, ("num_microbatches is True, expected an integer",)),
        ("gpipe", ("2", None), {}, ("num_ranks is '2', expected an integer", "num_microbatches is None")),
        ("interleaved", (2, 4, 2.5), {}, ("num_chunks is 2.5, expected an integer",)),
        ("gpipe", (10**5000, 4), {}, ("schedule gpipe: got <int, too long to be written> ranks", "at most 22360")),
        ("1f1b_afp", (2, 4), {"advance": True}, ("1f1b_afp: advance: got True, expected an integer",)),
        ("hanayo", (2, 4), {"waves": 2.0}, ("hanayo: waves: got 2.0, expected an integer",)),
        ("hanayo", (2, 4), {"waves": -2}, ("waves is -2, expected an integer of at least 1",)),
        ("zb_auto", (2, 4), {"f": 10**400}, ("zb_auto: f: got 1000", "expected a number")),
        ("1f1b_rr", (4, 4), {"replicas": 4}, ("1f1b_rr: replicas: got 4, expected integers",)),
        ("1f1b_rr", (4, 4), {"replicas": (2, 1.0, 1)}, ("1f1b_rr: replicas: got (2, 1.0, 1), expected integers",)),
        (5, (2, 4), {}, ("schedule: got 5, expected one of naive",)),
        (["gpipe"], (2, 4), {}, ("schedule: ", "got ['gpipe'], expected one of naive")),
    ],
)
def test_a_wrong_type_is_refused_in_one_line_that_names_it(builder, name, counts, settings, said):
    with refused(*said):
        builder(name, *counts, **settings)


def test_whole_numbers_of_numpy_are_whole_numbers():
    schedule = build("interleaved", np.int64(2), np.int32(4), np.int8(3))
    assert schedule.ops == interleaved(2, 4, 3).ops
    assert {type(schedule.num_stages), type(schedule.num_microbatches), type(schedule.ops[0][0].stage)} == {int}
    assert build("1f1b_rr", 4, 4, replicas=np.array([2, 1, 1])) == build("1f1b_rr", 4, 4, replicas=(2, 1, 1))
    assert build("zb_auto", 3, 6, f=np.float32(1.5), limit=np.int64(4)) == build("zb_auto", 3, 6, f=1.5, limit=4)


LARGE = """
import json, resource, sys, time
from pipesched.schedules.common import limits
from pipesched.schedules.builders.catalogue import CATALOGUE, build, build_generated
from pipesched.schedules import ScheduleError

limits.room_bytes = lambda: 2 << 30
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
settings, answers = json.load(sys.stdin), []
for name, counts, given in settings:
    for builder in (build, build_generated):
        began = time.process_time()
        try:
            made = builder(name, *counts, **given)
            num_ops = sum(map(len, made.ops)) if builder is build else 0
        except ScheduleError as error:
            assert len(str(error).splitlines()) == 1
            num_ops = 0
        answers.append((name, counts, given, num_ops, time.process_time() - began))
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_whatever_is_large_is_judged_before_anything_is_built():
    cases = []
    for entry in CATALOGUE.values():
        for large in (10**7, 10**18):
            cases += [(entry.name, counts, {}) for counts in ((large, 8), (large, large), (4, 8, large))]
            cases += (
                [(entry.name, (4, large), {})] if entry.build_generated is None else []
            )  # a run may be of any length
            for parameter in entry.parameters:
                values = [[large, 1, 1], [1] * 10**5] if parameter.takes == "integers" else [large]
                cases += [(entry.name, (4, 8), {parameter.name: value}) for value in values]
    done = subprocess.run([sys.executable, "-c", LARGE], input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    assert len(answers) == 2 * len(cases)
    for name, counts, given, num_ops, seconds in answers:
        assert num_ops < 1000, (name, counts, given)
        assert seconds < 2, (name, counts, given)
