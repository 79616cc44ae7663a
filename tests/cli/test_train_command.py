"""``train``: one schedule or several, on real samples."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.processes import PATIENCE_S, eventually, started

ROOT = Path(__file__).parents[2]
MODEL = "digits:width=8,blocks=6"
QUICK = f"train {MODEL} -p 2 -m 4 --batch-size 8 --uniform f=1,b=2"


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_is_logged_line_by_line_and_told_in_a_table(pipesched, folder):
    answer = pipesched(f"{QUICK} -s 1f1b --steps 6 --log run.jsonl")
    assert (answer.code, answer.err) == (0, "")
    lines = lines_of(folder / "run.jsonl")
    assert [(line["scheme"], line["step"], line["samples"]) for line in lines] == [
        ("1f1b", step, 8 * (step + 1)) for step in range(6)
    ]
    assert all(0 < line["loss"] < 10 and 0 <= line["accuracy"] <= 1 for line in lines)
    assert "1f1b" in answer.out
    assert "held-out loss" in answer.out
    assert "diverged" not in answer.out


@pytest.mark.slow
def test_several_schedules_start_from_the_same_weights_and_samples(pipesched, folder):
    answer = pipesched(
        f"{QUICK} --compare gpipe,pipedream,wpipe --steps 6 --log run.jsonl --plot c.png --out t.md --json"
    )
    assert (answer.code, answer.err) == (0, "")
    runs = {run["schedule"]: run for run in json.loads(answer.out)["runs"]}
    assert list(runs) == ["gpipe", "pipedream", "wpipe"]
    first = [line["loss"] for line in lines_of(folder / "run.jsonl") if line["step"] == 0]
    assert first == pytest.approx([first[0]] * 3, rel=1e-5)
    # in the unit model a batch takes (m + p - 1)(f + b) / m under gpipe and f + b without a flush
    assert runs["gpipe"]["seconds_per_step"] == pytest.approx(5 * 3 / 4)
    assert runs["pipedream"]["seconds_per_step"] == pytest.approx(3)
    assert runs["pipedream"]["run_s"] == pytest.approx(6 * 3 + 3)
    assert [run["staleness"] for run in runs.values()] == [0, 1, 1]
    assert [run["weight_versions"] for run in runs.values()] == [1, 2, 2]
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "t.md").read_text().startswith("| schedule")


def test_without_costs_a_short_profile_is_measured(pipesched):
    answer = pipesched(f"train {MODEL} -s gpipe -p 2 --batch-size 8 --steps 2 --json")
    assert (answer.code, answer.err) == (0, "")
    data = json.loads(answer.out)
    assert "measured now" in data["costs"]
    assert data["runs"][0]["run_s"] > 0


def test_a_target_accuracy_ends_a_run_and_the_table_has_its_step(pipesched, folder):
    line = "train digits:width=16,blocks=2 -s gpipe -p 2 --batch-size 32 --uniform f=1,b=2 --lr 0.01"
    answer = pipesched(f"{line} --steps 100 --target-accuracy 0.3 --held-out-every 5 --out t.json --log run.jsonl")
    (run,) = json.loads((folder / "t.json").read_text())
    assert run["steps"] == run["steps_to_accuracy"] == len(lines_of(folder / "run.jsonl")) < 100
    assert f"{run['steps']}, " in answer.out
    assert pipesched(f"{line} --steps 5 --target-accuracy 1").out.count("not reached") == 2


def test_several_seeds_have_a_row_each_and_a_curve_with_a_band(pipesched, folder):
    line = f"{QUICK} --compare gpipe,pipedream --steps 4 --seed 3 --lr-schedule cosine --lr-warmup 1"
    answer = pipesched(f"{line} --seeds 2 --log run.jsonl --plot c.svg --json")
    assert (answer.code, answer.err) == (0, "")
    runs = json.loads(answer.out)["runs"]
    assert [(run["schedule"], run["seed"]) for run in runs] == [
        ("gpipe", 3), ("gpipe", 4), ("pipedream", 3), ("pipedream", 4)
    ]  # fmt: skip
    alone = json.loads(pipesched(f"{line.replace('--seed 3', '--seed 4')} --json").out)["runs"]
    assert alone == runs[1::2]
    assert [line["seed"] for line in lines_of(folder / "run.jsonl")] == 2 * (4 * [3] + 4 * [4])
    title = "cosine, 1 steps of warm-up, mean of 2 seeds +- standard deviation"
    assert title in (folder / "c.svg").read_text()


def test_a_run_that_diverges_is_said_to_and_its_weights_are_not_written(pipesched, folder):
    line = "train mlp:layers=4,width=4 -p 2 -m 2 --batch-size 4 --uniform f=1,b=2 --optimizer sgd --lr 100 --steps 200"
    answer = pipesched(f"{line} --compare gpipe --log run.jsonl --out t.json --plot c.png")
    (run,) = json.loads((folder / "t.json").read_text())
    assert (run["diverged_at"], run["training_loss"], run["held_out_loss"]) == (run["steps"] - 1, None, None)
    assert f"step {run['diverged_at']}" in answer.out
    assert "nan" not in answer.out.lower()
    assert len(lines_of(folder / "run.jsonl")) == run["steps"] < 200
    answer = pipesched(f"{line} -s gpipe --export m.safetensors")
    assert "m.safetensors was not written: the run diverged" in answer.out
    assert not (folder / "m.safetensors").exists()


@pytest.mark.parametrize(("limit", "code"), [("1000B", 1), ("1GB", 0)])
def test_a_run_that_would_not_fit_is_not_begun(pipesched, folder, limit, code):
    costs = "--uniform f=1,b=2,weight_bytes=2000,saved_bytes=100"
    answer = pipesched(
        f"{QUICK.split(' --uniform')[0]} {costs} -s gpipe --steps 2 --memory-limit {limit} --log r.jsonl"
    )
    assert answer.code == code
    assert (folder / "r.jsonl").exists() == (code == 0)
    if code:
        assert "device 0" in answer.err
        assert (answer.out, answer.err.count("\n")) == ("", 1)


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_its_log_readable(tmp_path):
    log = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "pipesched", *f"{QUICK} -s gpipe --steps 1000000 --log".split(), str(log)]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    with started(command, cwd=tmp_path, env=environment, stdout=PIPE, stderr=PIPE) as process:
        assert eventually(lambda: process.poll() is not None or (log.exists() and log.stat().st_size > 1000))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.splitlines()[0]) == (130, b"", b"pipesched: stopped")
    lines = lines_of(log)
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 5


def test_a_job_is_written_and_nothing_is_trained(pipesched, folder):
    answer = pipesched(f"train {MODEL} -p 2 -m 4 --batch-size 8 -s wpipe --steps 7 --device cuda --job job.json")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    job = json.loads((folder / "job.json").read_text())
    assert (job["job"]["num_steps"], job["device"], job["bounds"]) == (7, "cuda", [[0, 2], [2, 4], [4, 6], [6, 8]])
    assert job["job"]["schedule_spec"]["name"] == "wpipe"


def test_a_signal_that_comes_before_the_first_step_is_heard_after_it(pipesched, folder):
    """It comes when the samples are looked at, before costs are measured."""
    line = "-s 1f1b -p 2 -m 2 --batch-size 4 --checkpoint c --every 50 --steps 100 --partition uniform"
    answer = pipesched(f"train tests.executor.models:signalling:layers=4,at=1 {line}")
    assert (answer.code, answer.err) == (75, "pipesched: paused after 1 of 100 steps; try --resume c to go on\n")


def test_a_signal_ends_a_run_after_a_checkpoint_and_resume_goes_on(pipesched, folder):
    line = "-s 1f1b -p 2 -m 2 --batch-size 4 --uniform f=1,b=2 --checkpoint c --every 50 --steps 100"
    answer = pipesched(f"train tests.executor.models:signalling:layers=4,at=9 {line}")
    assert answer.code == 75
    assert re.fullmatch(r"pipesched: paused after \d of 100 steps; try --resume c to go on\n", answer.err)
    answer = pipesched(f"train mlp:layers=4 {line}")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "try --resume c to continue" in answer.err
    answer = pipesched(f"train mlp:layers=4 {line} --resume c")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "a checkpoint of another run (model 'tests.executor" in answer.err
    assert pipesched("train mlp --compare gpipe,1f1b -p 2 --checkpoint d").code == 2
    assert not (folder / "d").exists()
