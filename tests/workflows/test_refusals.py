"""Arguments that make no sense are refused by name, in one line."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pipesched

GPT = str(Path(__file__).parents[2] / "profiles" / "data" / "gpt-10m-epyc.json")
COST = pipesched.DeviceCost(1.0, 2.0)
HALF = pipesched.Setup(GPT, compression="half")
FAST = pipesched.Link(0.0, 10**400)

LISTS = pipesched.build("1f1b", 2, 2)

setup: Any = pipesched.Setup
simulate: Any = pipesched.simulate
versions: Any = partial(pipesched.versions, "pipedream", num_ranks=2, num_microbatches=8)
check: Any = partial(pipesched.check, "1f1b", num_ranks=2, num_microbatches=2)
check_lists: Any = pipesched.check
compare: Any = partial(pipesched.compare, num_ranks=2, num_microbatches=2)
compare_runs: Any = pipesched.compare_runs
gantt: Any = pipesched.gantt
partition: Any = pipesched.partition
plan: Any = partial(pipesched.plan, GPT, batch_size=8, num_devices=2)
tune: Any = partial(pipesched.tune, GPT, batch_size=8, num_devices=2)
goodput_of: Any = partial(pipesched.goodput, step_s=1.0, num_steps=9, fail_every_s=9.0, restart_s=1.0, checkpoint_s=1.0)

WORDS = [
    ("by: got 'tme', expected one of replicas, time, memory", lambda: partition(GPT, 2, by="tme")),
    ("backend: got 'foo', expected one of gloo, nccl", lambda: check().runs_on("foo")),
]
NUMBERS = [
    ("step_s: got inf, expected a finite number of at least 0", lambda: goodput_of(step_s=float("inf"))),
    ("num_devices: got 0, expected at least 1", lambda: partition(GPT, 0)),
    ("costs: forward_s: got -1.0, expected a finite number", lambda: setup(pipesched.DeviceCost(-1.0, 2.0))),
    ("costs: backward_s: got -2.0, expected a finite", lambda: setup(pipesched.uniform(2, 1.0, -2.0))),
    ("costs: forward_s: got 1000.*, expected a finite", lambda: setup(pipesched.DeviceCost(10**400, 2.0))),
    ("costs: saved_bytes: got 1000", lambda: setup(pipesched.DeviceCost(1, 2, saved_bytes=10**400))),
    ("cluster: intra: bandwidth_bytes_per_s: got 10", lambda: simulate(LISTS, setup(COST, pipesched.flat(2, FAST)))),
    ("partition: got 0, expected at least 1", lambda: setup(GPT, partition=[0, 2])),
]
KINDS = [
    ("schedule: got None, expected a Schedule", lambda: simulate(None, COST)),
    ("schedule: got 7, expected a Schedule", lambda: check_lists(7)),
    ("setup: got None, expected a Setup, or costs", lambda: simulate(LISTS, None)),
    ("costs: got 3, expected StageCosts", lambda: setup(3)),
    ("parameters: got 3, expected names with their values", lambda: compare(["1f1b"], COST, parameters=3)),
    ("weights: got 3, expected a list", lambda: versions(weights=3)),
    ("cluster: got 7, expected a Cluster", lambda: simulate(LISTS, setup(COST, 7))),
    ("network: got 'eager', expected NetworkOptions", lambda: setup(COST, network="eager")),
    ("profile: got 3, expected a Profile", lambda: partition(3, 2)),
    ("partition: got 3, expected balanced", lambda: setup(GPT, partition=3)),
    (r"schedules: got 'gpipe', expected a list; try \['gpipe'\]", lambda: compare("gpipe", COST)),
    ("schedules: got '1f1b', expected a list", lambda: tune(schedules="1f1b")),
    ("setup: got `compression=half`, expected none: tune does not use it", lambda: pipesched.tune(HALF, batch_size=8)),
    ("profile: got DeviceCost.*, expected a Profile", lambda: pipesched.tune(COST, batch_size=8, num_devices=2)),
    ("timelines: got 3, expected a Timeline", lambda: gantt(3)),
    (r"timelines: got list\(..\), expected a Timeline", lambda: gantt([])),
    ("first: got 3, expected a Timeline", lambda: compare_runs(3, 4)),
]


@pytest.mark.parametrize(("message", "call"), WORDS + NUMBERS + KINDS)
def test_what_makes_no_sense_is_refused_by_name(message, call):
    with pytest.raises(pipesched.ArgumentError, match=f"^{message}") as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_a_partition_may_be_a_list_of_layers_per_stage():
    num_layers = len(pipesched.load_profile(GPT).layers)
    expected = simulate(LISTS, setup(GPT, partition=f"3,{num_layers - 3}")).makespan_s

    for given in ([3, num_layers - 3], (3, num_layers - 3)):
        assert simulate(LISTS, setup(GPT, partition=given)).makespan_s == expected
    tuned = pipesched.tune(
        setup(GPT, partition=[3, num_layers - 3]), batch_size=8, num_devices=2, microbatches=4, pipelines=1
    )
    assert tuned.problem.partition == f"3,{num_layers - 3}"


def test_the_file_of_a_plan_is_the_plan(tmp_path):
    search = pipesched.plan(GPT, batch_size=8, num_devices=2, top=1)
    search.save(tmp_path / "plan.json")
    assert search.plan is not None
    expected = pipesched.simulate(search.plan, GPT).makespan_s

    assert pipesched.simulate(str(tmp_path / "plan.json"), GPT).makespan_s == expected
    assert pipesched.check(tmp_path / "plan.json").runs_on("gloo")
    assert pipesched.compare([tmp_path / "plan.json"], GPT).summaries[0].makespan_s == expected


def test_a_schedule_that_is_not_compared_is_a_key_error_with_the_names():
    compared = compare(["gpipe", "1f1b"], COST)

    assert compared["1f1b"].summary.name == "1f1b"
    with pytest.raises(KeyError, match="got 'nope', expected one of gpipe, 1f1b"):
        compared["nope"]


@pytest.mark.slow
def test_options_of_the_command_line_load_no_module_that_reads_arguments():
    code = "import sys, pipesched.cli.commands.partition; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pipesched.questions.partitioning" in loaded
    assert [name for name in loaded if name.startswith("pipesched.workflows.arguments.")] == []
