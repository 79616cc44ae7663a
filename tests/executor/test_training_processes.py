"""Training with a process per rank gives what training in one process gives."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

import pipesched
from pipesched.executor import ExecutionError
from pipesched.executor.launch import RunSpec, Train, job_from_json, job_to_json
from pipesched.executor.runs import launch_training, train_locally, training_of
from pipesched.schedules import PredictionRule
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.pipelines import even_bounds

ROOT = Path(__file__).parents[2]
MODEL, NUM_LAYERS, STEPS = "digits:width=8,blocks=6", 8, 6


def a_job(name="pipeoptim", **fields):
    schedule_spec = fields.pop("schedule_spec", ScheduleSpec(name=name, num_ranks=2, num_microbatches=4))
    lists = schedule_spec.run(STEPS).lists(STEPS)
    given = {
        "model": MODEL,
        "dtype": "float64",
        "optimizer": "momentum",
        "lr": 0.05,
    }
    own = {"num_steps": STEPS, "batch_size": 8}
    own |= {name: fields.pop(name) for name in ("num_steps", "batch_size", "advance") if name in fields}
    bounds = even_bounds(NUM_LAYERS, lists.num_stages)
    return RunSpec(job=Train(schedule_spec=schedule_spec, **own), bounds=bounds, **(given | fields))


def locally(job):
    training = training_of(job)
    return train_locally(training)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "num_ranks", "averaging"),
    [("pipeoptim", 2, "asynchronous"), ("avgpipe", 1, "asynchronous"), ("avgpipe", 2, "synchronous")],
)
def test_every_step_and_the_final_weights_are_those_of_one_process(name, num_ranks, averaging):
    told = []
    spec = ScheduleSpec(name=name, num_ranks=num_ranks, num_microbatches=4)
    job = a_job(schedule_spec=spec, averaging=averaging)
    result = launch_training(job, lambda step, scores: told.append((step, scores)))
    expected = locally(job)
    assert [scores.loss for scores in result.steps] == pytest.approx(
        [scores.loss for scores in expected.steps], rel=1e-12
    )
    assert [scores.accuracy for scores in result.steps] == [scores.accuracy for scores in expected.steps]
    assert result.held_out.loss == pytest.approx(expected.held_out.loss, rel=1e-12)
    assert told == list(enumerate(result.steps))


@pytest.mark.distributed
def test_running_means_of_the_first_replica_are_exported_either_way(tmp_path):
    files = {}
    for is_distributed in (False, True):
        files[is_distributed] = tmp_path / f"{is_distributed}.safetensors"
        pipesched.train(
            "tests.executor.models:normed:layers=4", ScheduleSpec(name="chimera", num_ranks=2, num_microbatches=4),
            num_steps=2, batch_size=8,
            partition="uniform", is_distributed=is_distributed, export=files[is_distributed],
        )  # fmt: skip
    own, others = map(load_file, files.values())
    assert any("running_mean" in key for key in own)
    assert own.keys() == others.keys()
    assert all(own[key].equal(others[key]) for key in own)


@pytest.mark.distributed
def test_forwards_that_run_ever_further_ahead_change_times_and_not_losses():
    job = a_job(
        schedule_spec=ScheduleSpec(name="avgpipe", num_ranks=2, num_microbatches=8), num_steps=20, advance="auto"
    )
    result = launch_training(job)
    expected = locally(replace(job, job=replace(job.job, advance=None)))
    assert [scores.loss for scores in result.steps] == pytest.approx(
        [scores.loss for scores in expected.steps], rel=1e-12
    )
    assert result.held_out.loss == pytest.approx(expected.held_out.loss, rel=1e-12)
    tried = [trial.advance for trial in result.ahead.trials]
    assert tried == list(range(len(tried)))
    assert 1 <= len(tried) <= 3, "in phases of six steps"
    assert all(trial.seconds > 0 and trial.peak_bytes > 0 for trial in result.ahead.trials)
    assert result.ahead.advance in (0, *tried, len(tried))


@pytest.mark.distributed
def test_a_run_that_diverges_is_ended():
    result = launch_training(a_job("pipedream", num_steps=100000, optimizer="sgd", lr=1e6))
    assert result.diverged.step == len(result.steps) - 1 < 100000
    assert not math.isfinite(result.diverged.loss) or result.diverged.loss > 10 * result.steps[0].loss
    assert result.held_out is None


@pytest.mark.parametrize(
    "schedule_spec",
    [
        ScheduleSpec(name="wpipe", num_ranks=2, num_microbatches=4, parameters={"accumulate": 2}, recompute=(0, 1)),
        ScheduleSpec(name="1f1b_rr", num_ranks=3, num_microbatches=2, parameters={"replicas": (2, 1)}),
        ScheduleSpec(lists=to_json(build("zb_h1", 2, 4)), recompute="all"),
    ],
    ids=["accumulate", "replicas", "lists"],
)
def test_a_job_comes_back_from_its_json(schedule_spec):
    job = a_job(schedule_spec=schedule_spec, prediction=PredictionRule.ZERO)
    text = job_to_json(job)
    again = job_from_json(text, "here")
    assert again == job
    assert [list(ops) for ops in again.job.schedule_spec.run(STEPS).lists(STEPS).lists] == [
        list(ops) for ops in schedule_spec.run(STEPS).lists(STEPS).lists
    ]


def test_a_bad_job_is_refused_in_one_line():
    text = job_to_json(a_job())
    for old, new, words in [
        ('"batch_size": 8', '"batch_size": 0', "batch_size: got 0, expected at least 1"),
        ('"dtype": "float64"', '"dtype": "float7"', "dtype: got 'float7'"),
        ('"lr": 0.05', '"rate": 0.05', "rate: got"),
    ]:
        assert old in text
        with pytest.raises(ExecutionError, match=words) as refused:
            job_from_json(text.replace(old, new), "job.json")
        assert "\n" not in str(refused.value)


def test_a_model_cut_into_other_stages_than_the_lists_have_is_refused():
    job = a_job("gpipe")
    other = replace(job, bounds=even_bounds(job.bounds[-1][1], 3))
    with pytest.raises(ExecutionError, match="has 2 stages, but the partition of"):
        train_locally(training_of(other))
