"""Training with a process per rank gives what training in one process gives."""

import math
from dataclasses import replace

import pytest
from safetensors.torch import load_file

import pipesched
from pipesched.executor import ExecutionError
from pipesched.executor.runs import launch_training
from pipesched.schedules.transforms import ScheduleSpec
from tests.executor.checkpoint_runs import a_job, locally

TOKENS = {"model": "gpt:layers=2,width=8,heads=2,context=4", "dtype": "float64"}
"""Options of a training on tokens, which every process draws itself."""


@pytest.mark.distributed
def test_scores_are_those_of_one_process_also_where_forwards_run_ever_further_ahead():
    told = []
    result = launch_training(
        a_job("avgpipe", steps=14, training={"advance": "auto"}, **TOKENS), lambda *step: told.append(step)
    )
    expected = locally(a_job("avgpipe", steps=14, **TOKENS))
    assert told == list(enumerate(result.steps))
    for scores, its in zip([*result.steps, result.held_out], [*expected.steps, expected.held_out], strict=True):
        assert scores.loss == pytest.approx(its.loss, rel=1e-12)
        assert scores.accuracy == its.accuracy
    tried = [trial.advance for trial in result.ahead.trials]
    assert tried == list(range(len(tried)))
    assert 1 <= len(tried) <= 3, "in phases of six steps"
    assert all(trial.seconds > 0 and trial.peak_bytes > 0 for trial in result.ahead.trials)
    assert result.ahead.advance in (0, *tried, len(tried))


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
def test_a_run_that_diverges_is_ended():
    result = launch_training(a_job("pipedream", steps=100_000, **TOKENS, optimizer="sgd", lr=1e6))
    assert result.diverged.step == len(result.steps) - 1 < 100_000
    assert not math.isfinite(result.diverged.loss) or result.diverged.loss > 10 * result.steps[0].loss
    assert result.held_out is None


def test_a_model_cut_into_other_stages_than_the_lists_have_is_refused():
    with pytest.raises(ExecutionError, match="has 2 stages, but the partition of"):
        locally(replace(a_job("gpipe"), bounds=((0, 2), (2, 4), (4, 6))))
