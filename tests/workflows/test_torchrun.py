"""Scripts under torchrun: every process brings its own run, joins as its rank, and gets the result."""

import json
import os
import sys

import pytest

import pipesched
from pipesched.schedules.builders import build
from tests.cli.conftest import ROOT
from tests.processes import run

MODEL, DIGITS = "mlp:width=8,layers=4", "digits:width=8,blocks=4"
HOW = {"num_steps": 6, "batch_size": 8, "dtype": "float64", "optimizer": "momentum", "lr": 0.05}
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
CALLS = {
    "bounds, lr": "pipesched.run(f1b, MODEL, partition=('1,3', '3,1')[rank], lr=(0.1, 0.2)[rank])",
    "seed": "pipesched.train(DIGITS, pipesched.build('1f1b', 2, 2), num_steps=2, batch_size=8, seed=rank)",
    "nothing": "len(pipesched.run(f1b, MODEL, iterations=1, save=f'weights{rank}', timeout_s=50 + rank).losses)",
}
"""Calls with arguments that depend on the rank, by the settings that may not differ."""

SCRIPT = f"""
import json, os, pipesched
from dataclasses import replace
from pathlib import Path
from pipesched.profiles.models import resolve_model
MODEL, DIGITS, rank, said = {MODEL!r}, {DIGITS!r}, int(os.environ["RANK"]), {{}}
f1b, gpipe = (pipesched.build(name, 2, 4) for name in ("1f1b", "gpipe"))
settings = dict(iterations=1, optimizer="sgd")
first = pipesched.run(f1b, MODEL, iterations=2, optimizer="sgd")
again = pipesched.run(gpipe, MODEL, **settings)
said["named"] = first.makespans_s, first.losses, again.losses, sorted(os.sched_getaffinity(0))
plain = resolve_model(MODEL)
made = replace(plain, loss=lambda outputs, targets: 3 * plain.loss(outputs, targets))
tripled = pipesched.run(f1b, made, **settings).losses
trained = [pipesched.train(model, pipesched.build("1f1b", 2, 2), num_steps=1, lr=0.0).losses for model in (plain, made)]
profile = pipesched.profile(made, [1], repeats=1, optimizer="sgd").profile
verified = pipesched.verify(made, [f1b], profile=profile, partition="uniform", **settings)
said["made by hand"] = tripled, *trained, verified.schedules[0].loss_difference
said["trained"] = pipesched.train(DIGITS, pipesched.build("1f1b", 2, 2), **{HOW!r}).losses
said["threads"] = [Path(task, "comm").read_text() for task in Path("/proc/self/task").iterdir()]
for name, call in {CALLS!r}.items():
    try:
        said[name] = repr(eval(call))
    except ValueError as error:
        said[name] = type(error).__name__ + ": " + str(error)
Path(f"said{{rank}}").write_text(json.dumps(said))
"""

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what each of two processes has seen of its runs."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "script.py").write_text(SCRIPT)
    clean = {key: value for key, value in os.environ.items() if key not in TORCHRUN}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    done = run(launcher, env=clean | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"said{rank}").read_text()) for rank in range(2)]


def test_a_script_joins_as_its_rank_as_often_as_it_runs(said):
    first, second = (its["named"] for its in said)
    assert first == second, "every process gets the result, and has its cores back"
    alone = pipesched.run(build("1f1b", 2, 4), MODEL, iterations=2, warmup=0, optimizer="sgd")
    assert tuple(first[1]) == alone.losses
    assert tuple(first[2]) == pytest.approx(alone.losses)


def test_a_model_made_by_hand_runs(said):
    """Every process has the object; a loss that is three times another's shows that it is that one which is run."""
    tripled, trained, trained_tripled, difference = said[0]["made by hand"]
    assert tripled == pytest.approx([3 * loss for loss in said[0]["named"][1]], rel=1e-6)
    assert trained_tripled == pytest.approx([3 * loss for loss in trained], rel=1e-6)
    assert difference < 1e-6


def test_a_script_trains_as_its_rank(said):
    threads = said[0]["threads"] + said[1]["threads"]
    assert not [name for name in threads if "gloo" in name], "one would abort the process as Python ends"
    assert said[0]["trained"] == said[1]["trained"]
    alone = pipesched.train(DIGITS, build("1f1b", 2, 2), **HOW).losses
    assert said[0]["trained"] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("fields", ["bounds, lr", "seed"])
def test_processes_with_other_arguments_are_refused_in_all_of_them(said, fields):
    words = f"ExecutionError: {fields}: process 1 got something else than process 0; expected the same in every process"
    assert [its[fields] for its in said] == [words, words]


def test_what_a_process_may_have_its_own_way_is_not_compared(said):
    assert [its["nothing"] for its in said] == ["4", "4"]
