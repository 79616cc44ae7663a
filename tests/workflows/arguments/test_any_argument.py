"""No value of any argument of the library ends in an error from the inside: it is taken, or refused in one line."""

import inspect
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipesched
from pipesched.profiles.clusters import Device, of_nodes
from pipesched.profiles.costs import LayerCosts, StageCost, StageCosts
from pipesched.profiles.io import load_cluster, load_plan
from pipesched.profiles.models import resolve_model
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "name", "value", "words"),
    [
        (pipesched.build, "num_ranks", "a", "num_ranks is 'a', expected an integer"),
        (pipesched.compare, "parameters", 3, "parameters: got 3, expected names with their values"),
        (pipesched.versions, "weights", ["a"], "weights: got 'a', expected a finite number"),
        (pipesched.plan, "schedules", [], "schedules: got none, expected names; try ['1f1b']"),
        (pipesched.tune, "resume", 3, "resume: got 3, expected str or Path or None"),
        (pipesched.tune, "run_settings", 3, "run_settings: got 3, expected RunSettings"),
        (profile_links, "sizes_bytes", [], "sizes_bytes: got an empty list, expected at least one"),
        (pipesched.run, "prediction", "sgd", "prediction: got 'sgd', expected PredictionRule.MOMENTUM or "),
        (pipesched.verify, "partition", 3, "partition: got 3, expected balanced"),
        (pipesched.train, "on_step", 3, "on_step: got 3, expected a function"),
        (pipesched.train, "backend", "gloo", "backend: got it with all ranks in one process, expected `is_distributed"),
        (pipesched.tune, "resume", "/none/there", "/none/there: got no folder"),
        (pipesched.versions, "num_microbatches", 10**30, "schedule pipedream: got 1000000000000000000000000000000 mic"),
        (pipesched.what_if, "run", 5, "run: got 5, expected a Timeline, a simulation, a run or a file of a Timeline"),
        (pipesched.what_if, "run", [], "run: got none, expected at least one"),
        (pipesched.costs_from_runs, "runs", 2.5, "runs: got 2.5, expected a Timeline, a simulation, a run or a file"),
        (pipesched.compare_runs, "second", 5, "second: got 5, expected a Timeline"),
        (gantt, "timelines", None, "timelines: got None, expected a Timeline"),
        (gantt, "title", 3, "title: got 3, expected a text"),
        (gantt, "columns", "x", "columns: got 'x', expected an integer of at least 1"),
        (setup, "costs", "", "'': got Is a directory, expected a file that can be read"),
        (setup, "network", NetworkOptions(slowdown="x"), "network: slowdown: got 'x', expected a number"),
        (
            setup,
            "network",
            NetworkOptions(sends=[]),
            "network: sends: got list(..), expected one of p",
        ),
        (setup, "costs", StageCosts(3), "costs: stages: got 3, expected a list"),
        (setup, "costs", StageCosts((3,)), "costs: stages: got 3, expected StageCosts"),
        (setup, "costs", LayerCosts((3,)), "costs: layers: got 3, expected a StageCost of each"),
        (setup, "costs", LayerCosts(()), "costs: layers: got none, expected at least one Stag"),
        (setup, "costs", pipesched.uniform(2, "x"), "costs: forward_s: got 'x', expected a finite number"),
        *(
            (setup, "cluster", cluster, f"cluster: {words}")
            for cluster, words in (
                (pipesched.Cluster(3), "devices: got 3, expected a list"),
                (pipesched.Cluster((3,)), "devices: got 3, expected Devices"),
                (pipesched.Cluster((Device(speed=0),) * 2), "devices: speed: got 0, expected a number above"),
                (replace(pipesched.flat(2), intra=4), "intra: got 4, expected a Link"),
                (replace(pipesched.flat(2), inter="x"), "inter: got 'x', expected a Link"),
                (pipesched.flat(2, pipesched.Link("x", "y")), "intra: latency_s: got 'x', expected a finite number"),
                (pipesched.flat(2, pipesched.Link(0, 0)), "intra: bandwidth_bytes_per_s: got 0, expected a number ab"),
                (replace(pipesched.flat(2), links=3), "links: got 3, expected a list"),
                (replace(pipesched.flat(2), links=((0, 1),)), "links: got 2 things, expected (from device, to device"),
                (replace(pipesched.flat(2), links=((0, 1, 3),)), "links: got 3, expected a Link"),
                (replace(pipesched.flat(2), nics=(3,)), "nics: got 3, expected a list"),
            )
        ),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(function, name, value, words):
    with pytest.raises(OURS) as refusal:
        function(**CALLS[function] | {name: value})
    assert str(refusal.value).startswith(words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pipesched.uniform("3", 1.0), "num_stages: got '3', expected an integer of at least 1"),
        (lambda: pipesched.flat(2.5), "num_devices: got 2.5, expected an integer of at least 0"),
        (lambda: pipesched.flat(2, 5), "link: got 5, expected a Link, or None"),
        (lambda: of_nodes(pipesched.flat(2), 0), "num_nodes: got 0, expected an integer of at least 1"),
        (lambda: of_nodes(2, 2), "node: got 2, expected a Cluster"),
        (lambda: pipesched.flat(10**30), "num_devices: got 1000000000000000000000000000000, expected at most 100000"),
        (lambda: pipesched.uniform(10**30, 1.0), "num_stages: got 1000000000000000000000000000000, expected at most"),
        (lambda: of_nodes(pipesched.flat(2), 10**30), "num_nodes: got 1000000000000000000000000000000, exp"),
        (lambda: of_nodes(pipesched.flat(100_000), 2), "num_nodes: got 2, expected at most 1"),
        (lambda: pipesched.load_profile(5), "5: got "),
        (lambda: load_cluster(None), "None: got "),
    ],
)
def test_costs_machines_and_files_refuse_what_they_cannot_be_made_of(call, words):
    with pytest.raises(pipesched.ProfileError) as refusal:
        call()
    assert str(refusal.value).startswith(words)


def test_machines_and_costs_take_counts_of_numpy():
    assert pipesched.flat(np.int64(2)) == pipesched.flat(2)
    assert pipesched.uniform(np.int64(2), 1.0) == pipesched.uniform(2, 1.0)
    assert of_nodes(pipesched.flat(2), np.int64(2)) == of_nodes(pipesched.flat(2), 2)
