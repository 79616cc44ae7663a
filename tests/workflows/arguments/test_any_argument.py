"""No value of any argument of the library ends in an error from the inside: it is taken, or refused in one line."""

import copy
import inspect
import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import pipesched
from pipesched.executor.core import Predictor
from pipesched.profiles.clusters import Device, of_nodes
from pipesched.profiles.costs import LayerCosts, StageCost, StageCosts
from pipesched.profiles.io import load_cluster, load_plan
from pipesched.profiles.models import Model, resolve_model
from pipesched.schedules import PredictionRule
from pipesched.schedules.lowering import lower
from pipesched.simulator import NetworkOptions
from pipesched.workflows.file_formats import file_schema
from pipesched.workflows.measuring import fit_gpu, profile_from_runs, profile_kernels, profile_links, profile_of_layers
from pipesched.workflows.tuning import run_settings
from tests.hand_runs import run_by_hand

GPT = str(Path(__file__).parents[3] / "profiles" / "data" / "gpt-10m-epyc.json")
COST = pipesched.DeviceCost(1.0, 2.0)
MODEL = "mlp:width=8,layers=4"
COUNTS = {"num_ranks": 2, "num_microbatches": 4}
LISTS = pipesched.build("1f1b", 2, 4)
RUN = run_by_hand(LISTS, 0.0, 0.1)
TUNED = pipesched.tune(GPT, batch_size=8, num_devices=2, microbatches=[4], pipelines=[1], advances=[0])


def setup(**arguments):
    return pipesched.simulate(LISTS, pipesched.Setup(**arguments))


setup.__signature__ = inspect.signature(pipesched.Setup)


def gantt(timelines, title="", columns=100):
    return pipesched.gantt(timelines, title=title).to_text(columns)


def trace(timelines):
    return pipesched.trace(timelines)


CALLS = {
    pipesched.simulate: {"schedule": LISTS, "setup": COST},
    pipesched.optimize: {"schedule": pipesched.build("1f1b", 2, 1), "setup": COST, "seconds": 0},
    setup: {"costs": COST},
    pipesched.compare: {"schedules": ["gpipe"], "setup": COST, **COUNTS},
    pipesched.check: {"schedule": "1f1b", **COUNTS},
    pipesched.versions: {"schedule": "pipedream", **COUNTS},
    pipesched.partition: {"profile": GPT, "num_devices": 2},
    pipesched.sweep: {"schedules": ["gpipe"], "setup": COST, **COUNTS},
    pipesched.plan: {"setup": GPT, "batch_size": 8, "num_devices": 2, "schedules": ["gpipe"]},
    pipesched.tune: {
        "setup": GPT, "batch_size": 8, "num_devices": 2, "microbatches": [4], "pipelines": [1], "advances": [0],
    },
    run_settings: {"result": TUNED, "settings": [TUNED.chosen.setting]},
    pipesched.profile: {"model": MODEL},
    pipesched.analytic_profile: {"model": "gpt:layers=2", "gpu": "a100"},
    pipesched.export_setting: {"plan": "plan.json", "trainer": "torchtitan"},
    resolve_model: {"text": MODEL},
    pipesched.load_machine: {"name": "dgx-a100"},
    lower: {"schedule": pipesched.build("1f1b", **COUNTS)},
    profile_links: {},
    profile_kernels: {},
    fit_gpu: {"table": "shapes.csv", "gpu": "a100"},
    pipesched.uniform: {"num_stages": 2, "forward_s": 1.0},
    pipesched.flat: {"num_devices": 2},
    of_nodes: {"node": pipesched.flat(2), "num_nodes": 2},
    pipesched.load_profile: {"path": GPT},
    load_cluster: {"path": "cluster.json"},
    load_plan: {"path": "plan.json"},
    pipesched.run: {"schedule": LISTS, "model": MODEL},
    pipesched.verify: {"model": MODEL, "schedules": [LISTS]},
    pipesched.verify_rounds: {"model": MODEL, "schedules": [LISTS]},
    pipesched.replay: {"timeline": RUN, "setup": pipesched.uniform(2, 1.0, 2.0)},
    pipesched.train: {"model": MODEL, "schedule": LISTS, "num_steps": 2},
    pipesched.build: {"name": "1f1b", **COUNTS},
    pipesched.what_if: {"run": RUN, "schedule": "gpipe", "draws": 2},
    pipesched.costs_from_runs: {"runs": RUN},
    profile_from_runs: {"runs": RUN, "profile": GPT},
    profile_of_layers: {"costs": LayerCosts((StageCost(1.0, 2.0),) * 4)},
    file_schema: {"name": "plan"},
    pipesched.import_traces: {"files": ["rank0.json"]},
    pipesched.compare_runs: {"first": RUN, "second": RUN},
    gantt: {"timelines": RUN},
    trace: {"timelines": RUN},
}  # fmt: skip
WRONG = [
    "x", "", "two\nlines", -1, 0, 10**30, 2.5, True, None, [], [None], {}, {1: 2}, object(), float("nan"), int,
    np.array(3), np.array([[1, 2]]), Path("/there/is/none"),
]  # fmt: skip


OURS = (
    pipesched.ArgumentError,
    pipesched.ExecutionError,
    pipesched.ProfileError,
    pipesched.ScheduleError,
    pipesched.SimulationError,
)


class StartedError(Exception):
    """The call went as far as to start processes, or to train."""


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch, tmp_path):
    def start(*arguments, **keywords):
        raise StartedError

    for name in ("runs.launcher.Processes", "launch.started", "runs.train_locally"):
        monkeypatch.setattr(f"pipesched.executor.{name}", start)
    monkeypatch.setattr("pipesched.profiles.measuring.profile_model", start)
    monkeypatch.setattr("pipesched.profiles.measuring.measure_kernels", start)
    monkeypatch.setattr("pipesched.profiles.measuring.yardstick_s", start)
    monkeypatch.setattr("pipesched.simulator.search.runners.worker_pool", start)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two\nlines").write_text("neither\nof ours")


def arguments():
    for function in CALLS:
        parameters = inspect.signature(function).parameters
        names = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
        yield from (pytest.param(function, name, id=f"{function.__name__}-{name}") for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "name"), list(arguments()))
def test_what_is_no_value_of_an_argument_is_refused_in_one_line(function, name):
    for value in WRONG:
        said = ""
        try:
            function(**CALLS[function] | {name: value})
        except (StartedError, *OURS) as error:
            said = str(error)
        assert len(said.splitlines()) <= 1, value
        assert not said.startswith(":"), value


COUNTED = {
    pipesched.simulate: {"setup": pipesched.Setup(COST, jitter=0.1), "num_runs": 2},
    setup: {"jitter": 0.1, "seed": 3},
    pipesched.compare: {"num_chunks": None},
    pipesched.partition: {"microbatch_size": 2, "num_chunks": 1},
    pipesched.sweep: {"num_ranks": [2, 4], "num_workers": 1},
    pipesched.plan: {"depths": [2], "chunks": [1], "top": 3, "num_workers": 1},
    pipesched.tune: {"chunks": [2], "num_workers": 1, "num_contenders": 2},
    pipesched.profile: {"microbatch_sizes": [1, 2], "repeats": 2, "warmup": 1, "passes": 1, "threads": 1, "seed": 3},
    profile_links: {"num_ranks": 2, "sizes_bytes": [1024], "repeats": 2},
    profile_kernels: {"threads": 1, "repeats": 2, "warmup": 1, "seed": 3},
    pipesched.run: {"microbatch_size": 2, "iterations": 2, "warmup": 1, "threads": 1, "seed": 3, "partition": [2, 2]},
    pipesched.verify: {"profile": GPT, "model": "gpt", "microbatch_size": 2, "iterations": 2, "warmup": 1},
    pipesched.verify_rounds: {"rounds": 2, "microbatch_size": 2, "iterations": 2, "warmup": 1},
    pipesched.train: {"batch_size": 8, "held_out_every": 1},
    pipesched.what_if: {"num_microbatches": 8, "microbatch_size": 2, "output_bytes": 8, "warmup": 1, "seed": 3},
    pipesched.costs_from_runs: {"microbatch_size": 2, "output_bytes": 8, "warmup": 1},
    profile_from_runs: {"microbatch_size": 2, "warmup": 1},
    profile_of_layers: {"microbatch_size": 2, "microbatch_sizes": [1, 4]},
    gantt: {"columns": 80},
}
"""Counts besides those of `CALLS`."""


def of_numpy(value):
    if isinstance(value, list) and all(type(item) is int for item in value):
        return np.array(value)
    return np.int64(value) if type(value) is int else value


@pytest.mark.slow
@pytest.mark.parametrize("function", COUNTED, ids=lambda function: function.__name__)
def test_a_count_of_numpy_is_one_of_python(function):
    """As any cell of a table of pandas is: the result is the same, in JSON too."""
    arguments = CALLS[function] | COUNTED[function]
    results = []
    for given in (arguments, {name: of_numpy(value) for name, value in arguments.items()}):
        with suppress(StartedError):
            result = function(**given)
            results.append((repr(result), json.dumps(result.to_dict()) if hasattr(result, "to_dict") else ""))
    assert len(set(results)) <= 1
    assert len(results) != 1, "both start, or none"


def test_costs_from_counts_of_numpy_are_saved(tmp_path):
    costs = pipesched.costs_from_runs(RUN, microbatch_size=np.int64(2), output_bytes=np.int64(8))
    costs.save(tmp_path / "costs.json")
    assert pipesched.simulate(pipesched.build("1f1b", **COUNTS), tmp_path / "costs.json").makespan_s > 0


def bad(function, **changes):
    """Return a call of a function with some invalid arguments."""
    return lambda: function(**CALLS[function] | changes)


def on(cluster):
    return bad(setup, cluster=cluster)


def hand_made(*layers):
    return Model("own", layers, ("a", "b"), lambda output, target: output.mean(), lambda n, seed: (n, n))


ADAM = PredictionRule.ADAM
FLAT, FAST, HUGE = pipesched.flat(2), pipesched.Link(0.0, 10**400), "1000000000000000000000000000000"
LINEAR = torch.nn.Linear(2, 2)
ESTIMATE = pipesched.analytic_profile("gpt:layers=4", "A100", [1, 2, 4, 8])
PLANNED = pipesched.plan(ESTIMATE.profile, batch_size=8, num_devices=2, schedules=["1f1b"])
SIMULATED = pipesched.simulate(LISTS, COST)
REFUSED = {
    "num_ranks is 'a', expected an integer": bad(pipesched.build, num_ranks="a"),
    "parameters: got 3, expected names with their values": bad(pipesched.compare, parameters=3),
    "weights: got 'a', expected a finite number": bad(pipesched.versions, weights=["a"]),
    "weights: got 3, expected a list": bad(pipesched.versions, weights=3),
    "schedules: got none, expected names; try ['1f1b']": bad(pipesched.plan, schedules=[]),
    "schedules: got '1f1b', expected a list": bad(pipesched.tune, schedules="1f1b"),
    "schedules: got '1f1b,gpipe', expected a list; try ['1f1b', 'g": bad(pipesched.compare, schedules="1f1b,gpipe"),
    "resume: got 3, expected str or Path or None": bad(pipesched.tune, resume=3),
    "run_settings: got 3, expected RunSettings": bad(pipesched.tune, run_settings=3),
    "sizes_bytes: got an empty list, expected at least one": bad(profile_links, sizes_bytes=[]),
    "prediction: got 'sgd', expected PredictionRule.MOMENTUM or ": bad(pipesched.run, prediction="sgd"),
    "prediction: got adam with 1f1b": bad(pipesched.verify, prediction=ADAM),
    "prediction: got adam with gpipe": bad(pipesched.train, schedule=pipesched.build("gpipe", 2, 2), prediction=ADAM),
    "partition: got 3, expected balanced": bad(pipesched.verify, partition=3),
    "partition: got 0, expected at least 1": bad(setup, costs=GPT, partition=[0, 2]),
    "on_step: got 3, expected a function": bad(pipesched.train, on_step=3),
    "backend: got this setting with all ranks in one process, expected `is_distributed": bad(
        pipesched.train, backend="gloo"
    ),
    "cluster: got a cluster without `costs` or `profile`": bad(pipesched.train, cluster=FLAT),
    "limit_bytes: got 1000000000 without `advance`": bad(pipesched.train, limit_bytes=10**9),
    "lr: got True, expected a number from 0 to 1e+308": bad(pipesched.train, lr=True),
    "dtype: got 'int32'": bad(pipesched.profile, dtype="int32"),
    "dtype: got 'complex64'": bad(pipesched.profile, dtype="complex64"),
    "microbatch_sizes: got '4', expected an integer": bad(pipesched.profile, microbatch_sizes="4"),
    "microbatch_sizes: got 0": bad(pipesched.profile, microbatch_sizes=[0]),
    "/none/there: got no folder": bad(pipesched.tune, resume="/none/there"),
    f"schedule pipedream: got {HUGE} mic": bad(pipesched.versions, num_microbatches=10**30),
    "run: got 5, expected a Timeline, a simulation, a run or a file of a Timeline": bad(pipesched.what_if, run=5),
    "run: got no Timeline, expected at least one": bad(pipesched.what_if, run=[]),
    "runs: got 2.5, expected a Timeline, a simulation, a run or a file": bad(pipesched.costs_from_runs, runs=2.5),
    "second: got 5, expected a Timeline": bad(pipesched.compare_runs, second=5),
    "first: got 3, expected a Timeline": bad(pipesched.compare_runs, first=3, second=4),
    "timelines: got None, expected a Timeline": bad(gantt, timelines=None),
    "timelines: got list(..), expected a Timeline": bad(gantt, timelines=[]),
    "title: got 3, expected a text": bad(gantt, title=3),
    "columns: got 'x', expected an integer of at least 1": bad(gantt, columns="x"),
    "by: got 'tme', expected one of replicas, time, memory": bad(pipesched.partition, by="tme"),
    "num_devices: got 0, expected at least 1": bad(pipesched.partition, num_devices=0),
    "profile: got 3, expected a Profile": bad(pipesched.partition, profile=3),
    "profile: got DeviceCost": bad(pipesched.tune, setup=COST),
    "setup: got `compression=half`, expected none: tune does not use it": bad(
        pipesched.tune, setup=pipesched.Setup(GPT, compression="half")
    ),
    "schedule: got None, expected a Schedule": bad(pipesched.simulate, schedule=None),
    "schedule: got 7, expected a Schedule": bad(pipesched.simulate, schedule=7),
    "schedule: got PlanSearch(..), expected a part of this object; try": bad(pipesched.simulate, schedule=PLANNED),
    "schedule: got Simulation(..), expected a part of this object; try its ": bad(
        pipesched.simulate, schedule=SIMULATED
    ),
    "plan: got PlanSearch(..), expected a part of this object; ": bad(pipesched.export_setting, plan=PLANNED),
    "setup: got None, expected a Setup, or costs": bad(pipesched.simulate, setup=None),
    "setup: got tuple(..), expected a Setup, or costs": bad(pipesched.simulate, setup=(1.0, 2.0)),
    "setup: got ProfileMeasurement(..), expected a part of": bad(pipesched.simulate, setup=ESTIMATE),
    "network: got 'eager', expected NetworkOptions": bad(setup, network="eager"),
    "network: slowdown: got 'x', expected a number": bad(setup, network=NetworkOptions(slowdown="x")),
    "network: sends: got list(..), expected one of p": bad(setup, network=NetworkOptions(sends=[])),
    "'': got Is a directory, expected a file that can be read": bad(setup, costs=""),
    "costs: got 3, expected StageCosts": bad(setup, costs=3),
    "costs: stages: got 3, expected a list": bad(setup, costs=StageCosts(3)),
    "costs: stages: got 3, expected StageCosts": bad(setup, costs=StageCosts((3,))),
    "costs: layers: got 3, expected a StageCost of each": bad(setup, costs=LayerCosts((3,))),
    "costs: layers: got none, expected at least one Stag": bad(setup, costs=LayerCosts(())),
    "costs: forward_s: got 'x', expected a finite number": bad(setup, costs=pipesched.uniform(2, "x")),
    "costs: forward_s: got -1.0, expected a finite number": bad(setup, costs=pipesched.DeviceCost(-1.0, 2.0)),
    "costs: forward_s: got 1000": bad(setup, costs=pipesched.DeviceCost(10**400, 2.0)),
    "costs: backward_s: got -2.0, expected a finite": bad(setup, costs=pipesched.uniform(2, 1.0, -2.0)),
    "costs: saved_bytes: got 1000": bad(setup, costs=pipesched.DeviceCost(1, 2, saved_bytes=10**400)),
    "cluster: got 'dgx-h100', expected a Cluster": on("dgx-h100"),
    "cluster: devices: got 3, expected a list": on(pipesched.Cluster(3)),
    "cluster: devices: got 3, expected Devices": on(pipesched.Cluster((3,))),
    "cluster: devices: speed: got 0, expected a number above": on(pipesched.Cluster((Device(speed=0),) * 2)),
    "cluster: intra: got 4, expected a Link": on(replace(FLAT, intra=4)),
    "cluster: inter: got 'x', expected a Link": on(replace(FLAT, inter="x")),
    "cluster: intra: latency_s: got 'x', expected a finite number": on(pipesched.flat(2, pipesched.Link("x", "y"))),
    "cluster: intra: bandwidth_bytes_per_s: got 0, expected a number ab": on(pipesched.flat(2, pipesched.Link(0, 0))),
    "cluster: intra: bandwidth_bytes_per_s: got 10": on(pipesched.flat(2, FAST)),
    "cluster: links: got 3, expected a list": on(replace(FLAT, links=3)),
    "cluster: links: got a tuple of 2 items, expected (from device, to device": on(replace(FLAT, links=((0, 1),))),
    "cluster: links: got 3, expected a Link": on(replace(FLAT, links=((0, 1, 3),))),
    "cluster: nics: got 3, expected a list": on(replace(FLAT, nics=(3,))),
    "num_stages: got '3', expected an integer of at least 1": bad(pipesched.uniform, num_stages="3"),
    f"num_stages: got {HUGE}, expected at most": bad(pipesched.uniform, num_stages=10**30),
    "num_devices: got 2.5, expected an integer of at least 0": bad(pipesched.flat, num_devices=2.5),
    f"num_devices: got {HUGE}, expected at most 100000": bad(pipesched.flat, num_devices=10**30),
    "link: got 5, expected a Link, or None": bad(pipesched.flat, link=5),
    "num_nodes: got 0, expected an integer of at least 1": bad(of_nodes, num_nodes=0),
    f"num_nodes: got {HUGE}, exp": bad(of_nodes, num_nodes=10**30),
    "num_nodes: got 2, expected at most 1": bad(of_nodes, node=pipesched.flat(100_000)),
    "node: got 2, expected a Cluster": bad(of_nodes, node=2),
    "5: got ": bad(pipesched.load_profile, path=5),
    "None: got ": bad(load_cluster, path=None),
    "step_s: got inf, expected a finite number of at least 0": lambda: pipesched.goodput(
        float("inf"), 9, fail_every_s=9.0, restart_s=1.0, checkpoint_s=1.0
    ),
    "backend: got 'foo', expected one of gloo, nccl": lambda: pipesched.check(LISTS).runs_on("foo"),
    "path: got 3, expected the name of a file": lambda: pipesched.gantt(SIMULATED).save(3),
    "path: got None, expected the name of a file": lambda: PLANNED.save(None),
    "num_microbatches: got 'x', expected an integer": lambda: pipesched.versions("1f1b", **COUNTS).plot("x"),
    "top: got -1, expected at least 1": lambda: TUNED.table(-1),
    "outcome: got Setting(..), expected one of the outcomes": lambda: TUNED.gain(TUNED.chosen.setting),
    "model own: layer 0: got Linear, expected a function that builds the layer; try": lambda: hand_made(LINEAR, LINEAR),
    "optimizer: got 3, expected one of torch.opt": lambda: Predictor(3, PredictionRule.ZERO),
    "rule: got 'zero', expected one of PredictionRule.MOMENTUM, ": lambda: Predictor(
        torch.optim.SGD(LINEAR.parameters(), 0.1), "zero"
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_argument_that_makes_no_sense_is_named_in_one_line(words):
    with pytest.raises(OURS) as refusal:
        REFUSED[words]()
    assert str(refusal.value).startswith(words)
    assert "\n" not in str(refusal.value)


def test_under_torchrun_a_profile_is_given_to_all(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pipesched.ArgumentError, match=r"^profile: got none under torchrun"):
        bad(pipesched.verify)()


def test_the_advice_of_refusals_is_taken():
    assert pipesched.simulate(LISTS, ESTIMATE.profile).makespan_s > 0
    assert pipesched.simulate(PLANNED.plan, ESTIMATE.profile).makespan_s > 0
    assert pipesched.simulate(SIMULATED.schedule, COST).makespan_s == SIMULATED.makespan_s
    assert "# torchtitan, " in pipesched.export_setting(PLANNED.plan, "torchtitan")
    machine = pipesched.Setup(COST, pipesched.load_machine("dgx-h100"))
    assert pipesched.simulate(LISTS, machine).makespan_s > 0
    assert TUNED.gain(TUNED.chosen) > 0
    assert len(hand_made(*[partial(copy.deepcopy, LINEAR)] * 2).layers) == 2


def test_a_schedule_that_is_not_compared_is_a_key_error_with_the_names():
    compared = pipesched.compare(["gpipe", "1f1b"], COST, **COUNTS)
    assert compared["1f1b"].summary.name == "1f1b"
    with pytest.raises(KeyError, match="got 'nope', expected one of gpipe, 1f1b"):
        compared["nope"]


def test_machines_and_costs_take_counts_of_numpy():
    assert pipesched.flat(np.int64(2)) == pipesched.flat(2)
    assert pipesched.uniform(np.int64(2), 1.0) == pipesched.uniform(2, 1.0)
    assert of_nodes(pipesched.flat(2), np.int64(2)) == of_nodes(pipesched.flat(2), 2)
