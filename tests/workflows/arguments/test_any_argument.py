"""No value of any argument of the library ends in an error from the inside: it is taken, or refused in one line."""

import inspect
from contextlib import suppress
from pathlib import Path

import pytest

import pipesched
from pipesched.workflows.arguments import RunKeywords
from tests.hand_runs import run_by_hand

GPT = "profiles/data/gpt-10m-epyc.json"
COST = pipesched.DeviceCost(1.0, 2.0)
MODEL = "mlp:width=8,layers=4"
COUNTS = {"num_ranks": 2, "num_microbatches": 4}
RUN = run_by_hand(pipesched.build("1f1b", num_ranks=2, num_microbatches=4), 0.0, 0.1)
CALLS = {
    pipesched.simulate: {"schedule": "1f1b", "costs": COST, **COUNTS},
    pipesched.compare: {"schedules": ["gpipe"], "costs": COST, **COUNTS},
    pipesched.check: {"schedule": "1f1b", **COUNTS},
    pipesched.versions: {"schedule": "pipedream", **COUNTS},
    pipesched.partition: {"profile": GPT, "num_devices": 2},
    pipesched.plan: {"profile": GPT, "cluster": None, "batch_size": 8, "num_devices": 2, "schedules": ["gpipe"]},
    pipesched.tune: {
        "profile": GPT, "batch_size": 8, "num_devices": 2, "microbatches": [4], "pipelines": [1], "advances": [0],
    },
    pipesched.profile: {"model": MODEL},
    pipesched.profile_links: {},
    pipesched.uniform: {"num_stages": 2, "forward_s": 1.0},
    pipesched.flat: {"num_devices": 2},
    pipesched.of_nodes: {"node": pipesched.flat(2), "num_nodes": 2},
    pipesched.load_profile: {"path": GPT},
    pipesched.load_cluster: {"path": "cluster.json"},
    pipesched.load_plan: {"path": "plan.json"},
    pipesched.run: {"schedule": "1f1b", "model": MODEL, **COUNTS},
    pipesched.verify: {"model": MODEL, "schedules": ["1f1b"], **COUNTS},
    pipesched.verify_rounds: {"model": MODEL, "schedules": ["1f1b"], **COUNTS},
    pipesched.replay: {"timeline": RUN, "costs": pipesched.uniform(2, 1.0, 2.0)},
    pipesched.train: {"model": MODEL, "schedule": "1f1b", "num_ranks": 2, "num_steps": 2},
}  # fmt: skip
WRONG = ["x", -1, 0, 2.5, True, None, [], [None], {}, {1: 2}, object(), float("nan")]


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
    monkeypatch.setattr("pipesched.profiles.measuring.yardstick_s", start)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").symlink_to(Path(__file__).parents[3] / "profiles")


def arguments():
    for function in CALLS:
        parameters = inspect.signature(function).parameters
        names = [name for name in parameters if name != "keywords"]
        names += RunKeywords.__annotations__ if "keywords" in parameters else []
        yield from (pytest.param(function, name, id=f"{function.__name__}-{name}") for name in names)


@pytest.mark.parametrize(("function", "name"), list(arguments()))
def test_what_is_no_value_of_an_argument_is_refused_in_one_line(function, name):
    for value in WRONG:
        with suppress(StartedError, *OURS):
            function(**CALLS[function] | {name: value})


@pytest.mark.parametrize(
    ("function", "name", "value", "words"),
    [
        (pipesched.simulate, "jitter", "x", "jitter: got 'x', expected a finite number of at least 0"),
        (pipesched.simulate, "seed", "a", "seed: got 'a', expected an integer of at least 0"),
        (pipesched.simulate, "num_ranks", "a", "num_ranks: got 'a', expected an integer"),
        (pipesched.compare, "keep_going", 1, "keep_going: got 1, expected True or False"),
        (pipesched.compare, "parameters", 3, "parameters: got 3, expected names with their values"),
        (pipesched.check, "parameters", {1: 2}, "parameters: got 1, expected names"),
        (pipesched.versions, "weights", ["a"], "weights: got 'a', expected a finite number"),
        (pipesched.partition, "straight", "no", "straight: got 'no', expected True or False"),
        (pipesched.plan, "schedules", [], "schedules: got none, expected names; try ['1f1b']"),
        (pipesched.plan, "schedules", [3], "schedules: got 3, expected names; try ['1f1b']"),
        (pipesched.plan, "recomputes", [], "recomputes: got an empty list, expected at least one"),
        (pipesched.plan, "compressions", [], "compressions: got an empty list, expected at least one"),
        (pipesched.plan, "fewer", 2, "fewer: got 2, expected True or False"),
        (pipesched.plan, "time_limit_s", 0, "time_limit_s: got 0, expected a number above 0"),
        (pipesched.tune, "resume", 3, "resume: got 3, expected the name of a file, or None"),
        (pipesched.tune, "recomputes", ["no"], "recomputes: got 'no', expected True or False"),
        (pipesched.profile, "repeats", 0, "repeats: got 0, expected at least 1"),
        (pipesched.profile, "splits", "yes", "splits: got 'yes', expected True or False"),
        (pipesched.profile, "threads", 0, "threads: got 0, expected at least 1"),
        (pipesched.profile_links, "num_ranks", 1, "num_ranks: got 1, expected at least 2"),
        (pipesched.profile_links, "backend", "mpi", "backend: got 'mpi', expected one of gloo, nccl"),
        (pipesched.profile_links, "sizes_bytes", 5, "sizes_bytes: got 5, expected a list"),
        (pipesched.run, "is_pinned", "no", "is_pinned: got 'no', expected True or False"),
        (pipesched.run, "save", 5, "save: got 5, expected the name of a folder, or None"),
        (pipesched.run, "is_checked", 0, "is_checked: got 0, expected True or False"),
        (pipesched.run, "progress", 3, "progress: got 3, expected a function"),
        (pipesched.verify, "partition", 3, "partition: got 3, expected balanced"),
        (pipesched.train, "is_distributed", "no", "is_distributed: got 'no', expected True or False"),
        (pipesched.train, "on_step", 3, "on_step: got 3, expected a function"),
        (pipesched.train, "backend", "gloo", "backend: got it with all ranks in one process, expected `is_distributed"),
        (pipesched.train, "timeout_s", 5.0, "timeout_s: got it with all ranks in one process, expected `is_dist"),
        (pipesched.train, "is_pinned", False, "is_pinned: got it with all ranks in one process, expected `is_dist"),
        (pipesched.train, "save", "folder", "save: got it with all ranks in one process, expected `is_dist"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(function, name, value, words):
    with pytest.raises(pipesched.ArgumentError) as refusal:
        function(**CALLS[function] | {name: value})
    assert str(refusal.value).startswith(words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pipesched.uniform("3", 1.0), "num_stages: got '3', expected an integer of at least 1"),
        (lambda: pipesched.flat(2.5), "num_devices: got 2.5, expected an integer of at least 0"),
        (lambda: pipesched.flat(2, 5), "link: got 5, expected a Link, or None"),
        (lambda: pipesched.of_nodes(pipesched.flat(2), 0), "num_nodes: got 0, expected an integer of at least 1"),
        (lambda: pipesched.of_nodes(2, 2), "node: got 2, expected a Cluster"),
        (lambda: pipesched.load_profile(5), "5: got "),
        (lambda: pipesched.load_cluster(None), "None: got "),
    ],
)
def test_costs_machines_and_files_refuse_what_they_cannot_be_made_of(call, words):
    with pytest.raises(pipesched.ProfileError) as refusal:
        call()
    assert str(refusal.value).startswith(words)
