"""Scripts under torchrun: every process brings its own run or pipeline, joins as its rank, and gets the result."""

import json
import os
import sys

import pytest

import pipesched
from pipesched.schedules.builders import build
from tests.cli.conftest import ROOT
from tests.processes import run
from tests.workflows.pipelines.test_pipeline import SIZE, batches, plain_loop, whole

MODEL, DIGITS = "mlp:width=8,layers=4", "digits:width=8,blocks=4"
HOW = {"num_steps": 6, "batch_size": 8, "dtype": "float64", "optimizer": "momentum", "lr": 0.05}
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
CALLS = {
    "bounds, lr": "pipesched.run(f1b, MODEL, partition=('1,3', '3,1')[rank], lr=(0.1, 0.2)[rank])",
    "seed": "pipesched.train(DIGITS, pipesched.build('1f1b', 2, 2), num_steps=2, batch_size=8, seed=rank)",
    "nothing": "len(pipesched.run(f1b, MODEL, iterations=1, save=f'weights{rank}', timeout_s=50 + rank).losses)",
}
"""Calls with arguments that depend on the rank, by the settings that may not differ."""
PIPELINES = {"1f1b None": None, "1f1b 0.05": 0.05, "zbv None": None, "chimera 0.05": 0.05}
"""Schedules of pipelines, each with the largest norm of gradients; from zbv on, the script has a process group."""

SCRIPT = f"""
import json, os, pipesched, signal
from dataclasses import replace
from pathlib import Path
import torch.distributed as dist
from pipesched.profiles.models import resolve_model
from tests.workflows.pipelines.test_pipeline import batches, pipeline
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
data = list(batches(6, 12))
for name, norm in {PIPELINES!r}.items():
    if name == "zbv None":
        dist.init_process_group("gloo")
    with pipeline(name.split()[0], clip_grad_norm=norm) as pipe:
        losses = [pipe.step(*batch, update=number % 3 == 2).item() for number, batch in enumerate(data)]
        recorded = pipe.step(*data[0], record=True), pipe.step(*data[0])
        timeline, before = pipe.timeline(), pipe.state_dict()
        shared = [
            *[loss.item() for loss in recorded], timeline.makespan_s, len(timeline.spans),
            pipe.evaluate(data[0][0])[:6].tolist(), {{key: value.tolist() for key, value in before.items()}},
        ]
        evaluated = pipe.evaluate(*data[0]).item()
        pipe.step(*data[0])
        pipe.load_state_dict(before)
        again = pipe.evaluate(*data[0]).item()
    said[name] = losses, dist.is_initialized(), evaluated, again, shared
dist.destroy_process_group()
Path(f"said{{rank}}").write_text(json.dumps(said))
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, when another rank has ended
batch, pipe = next(batches(1, 12)), pipeline(timeout_s=3.0)
try:
    pipe.step(*batch)
    os._exit(3) if rank else pipe.step(*batch)
except pipesched.ExecutionError as error:
    Path(f"failed{{rank}}").write_text(str(error))
"""

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a script that two processes have run, one of which died in the end."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "script.py").write_text(SCRIPT)
    clean = {key: value for key, value in os.environ.items() if key not in TORCHRUN}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    done = run(launcher, env=clean | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, cwd=folder)
    assert (folder / "failed0").exists(), done.stderr
    return folder


@pytest.fixture(scope="module")
def said(folder):
    """Return the answers of each of two processes about its runs."""
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
    words = f"{fields}: process 1 got another value than process 0; expected the same values in every process"
    assert [its[fields] for its in said] == [f"ExecutionError: {words}"] * 2


def test_what_a_process_may_have_its_own_way_is_not_compared(said):
    assert [its["nothing"] for its in said] == ["4", "4"]


@pytest.mark.parametrize(("case", "norm"), PIPELINES.items())
def test_pipelines_have_the_losses_of_a_plain_loop(said, case, norm):
    assert said[0][case] == said[1][case]
    losses, has_group, evaluated, evaluated_again, _ = said[0][case]
    assert losses == pytest.approx(plain_loop(whole(), batches(6, 4 * SIZE), max_norm=norm, accumulate=3), rel=1e-9)
    assert evaluated == evaluated_again
    assert has_group is not case.startswith("1f1b")


def test_a_process_that_dies_is_named_in_one_line(folder):
    (path,) = folder.glob("failed*")
    assert path.read_text().startswith("rank 0 failed at")
    assert "\n" not in path.read_text()
