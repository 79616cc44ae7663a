"""``--memory-limit``: judged and shown with its unit, or refused; never passed over."""

import json

import pytest

from pipesched.profiles.clusters import Cluster, Device
from pipesched.profiles.io import save_json
from pipesched.simulator.analysis import readable_reason
from tests.profiles.hand_profiles import layer, measurement, profile

COSTS = "--uniform f=1,b=2"
BYTES = f"{COSTS},saved_bytes=1000"
LISTS = "-s 1f1b -p 2 -m 4"
COMMANDS = (f"simulate {LISTS}", f"gantt {LISTS}", f"trace {LISTS}", "compare 1f1b -p 2 -m 4")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_limit_that_is_judged_is_shown_with_its_unit_and_a_small_number_without_is_refused(pipesched, command):
    """Two micro-batches of 1000 bytes are in flight on device 0."""
    for limit, shown, fits in (("2000B", "2000 B (1.953 KiB)", True), ("1500", "1500 B (1.465 KiB)", False)):
        answer = pipesched(f"{command} {BYTES} --memory-limit {limit}")
        is_yes = fits or command.startswith("compare")  # which says so in its row
        assert (answer.code, answer.err == "") == (0 if is_yes else 1, is_yes)
        assert is_yes or "holds 1.953 KiB of 1.465 KiB" in answer.err
        assert command.startswith("trace") or f"\nmemory limit {shown} of every device\n" in answer.out
    for bare in ("80", "1023", "0.5e3"):
        answer = pipesched(f"{command} {BYTES} --memory-limit {bare}")
        assert (answer.code, answer.out, "--memory-limit" in answer.err) == (2, "", True)


@pytest.fixture
def half(folder):
    """A cluster of two devices, of one of which the memory is known."""
    save_json(Cluster((Device(memory_bytes=3000), Device())), folder / "half.json")


def test_a_limit_of_some_devices_alone_says_nothing_of_the_others(pipesched, half):
    line = f"{LISTS} {BYTES} --cluster half.json"
    said = "memory limit 2.93 KiB: not checked on devices without a known limit (1)\n"
    for command in ("simulate", "gantt"):
        answer = pipesched(f"{command} {line}")
        assert (answer.code, answer.err) == (0, "")
        assert said in answer.out
    over = pipesched(f"simulate {line.replace('1000', '2000')} --json")
    assert (over.code, json.loads(over.out)["fits"]) == (1, False)


def test_a_limit_of_a_file_is_said_not_to_be_judged_where_the_costs_say_no_bytes(pipesched, half):
    answer = pipesched(f"simulate {LISTS} {COSTS} --cluster half.json")
    assert (answer.code, answer.err) == (0, "")
    assert "memory limit 2.93 KiB: not checked, because the costs have no bytes\n" in answer.out


@pytest.fixture
def tiny(folder):
    """A profile of four equal layers."""
    save_json(profile(*[layer(measurement(1), measurement(2), measurement(8))] * 4), folder / "tiny.json")
    return "tiny.json"


def test_what_the_tuner_and_the_planner_judge_is_shown_too(pipesched, tiny):
    tuned = pipesched(f"tune {tiny} -b 8 -p 2 -m 4 -n 1 --advance 0 --memory-limit 1GB --workers 1")
    planned = pipesched(f"plan {tiny} -b 8 --devices 2 --memory-limit 1GB")
    for answer in (tuned, planned):
        assert (answer.code, answer.err) == (0, "")
        assert "memory limit 1 GB (953.7 MiB) of every device\n" in answer.out


def test_reasons_have_the_unit_of_tables():
    assert readable_reason("over memory: it holds 2048 bytes of 1536") == "over memory: it holds 2 KiB of 1.5 KiB"
    assert readable_reason("holds 1048577 bytes of 1048576") == "holds 1 MiB of 1 MiB (1 B too many)"
    assert readable_reason("holds 2 bytes of 1 from 0.0250001 s on, at 0F1") == "holds 2 B of 1 B from 25 ms on, at 0F1"
