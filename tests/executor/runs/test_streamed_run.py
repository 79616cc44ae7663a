"""Measured runs with all ranks in one process: as with a process per rank, but for the times."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pipesched.executor import ExecutionError, RankFailed
from pipesched.executor.launch import Measure, RunSpec
from pipesched.executor.runs import RankListener, launch, measure_on_streams, whole_model_losses
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from tests.executor.pipelines import MLP, even_bounds

SCHEDULES = ["1f1b", "interleaved", "zb_h1", "pipedream", "avgpipe"]


def spec(name, model=MLP, num_ranks=2, iterations=2, **settings):
    schedule = build(name, num_ranks, 4)
    bounds = even_bounds(6, schedule.num_stages)
    job = Measure(schedule=to_json(schedule), microbatch_size=2, iterations=iterations, warmup=0)
    return RunSpec(job=job, model=model, bounds=bounds, transport="streams", optimizer="sgd", **settings)


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_ops_are_timed_and_losses_are_those_of_the_whole_model(name):
    heard = []
    asked = spec(name, dtype="float64")
    measured = measure_on_streams(asked, lambda rank: RankListener(lambda index, op: heard.append((rank, index))))
    assert measured.losses[0] == pytest.approx(whole_model_losses(asked)[0], rel=1e-12)
    spans = measured.timeline.spans
    assert heard == list(dict.fromkeys(heard[: len(heard) // 2])) * 2
    assert len(heard) == 2 * len(spans)
    assert all(0 <= span.posted_s <= span.start_s <= span.end_s for span in spans)
    assert len(measured.makespans_s) == 2
    assert max(span.end_s for span in spans) - min(span.start_s for span in spans) <= max(measured.makespans_s)


def test_each_rank_holds_its_own_bytes():
    """The weights, gradients and momentum of a layer of 2,000 x 2,000 in float32 take 16 MB each."""
    measured = measure_on_streams(spec("1f1b", "mlp:layers=6,width=2000", lr=0.0), lambda rank: RankListener())
    peaks = {}
    for sample in measured.timeline.memory:
        peaks[sample.device] = max(peaks.get(sample.device, 0), sample.total_bytes)
    for peak in peaks.values():
        assert 3 * 16e6 * 2 <= peak <= 3 * 16e6 * 2 * 1.1


def test_a_process_of_all_ranks_brings_back_the_result():
    measured = launch(spec("1f1b"))
    assert len(measured.losses) == 4
    # on a CPU to launch an op is to run it
    assert measured.timeline.makespan_s <= measured.timeline.launch_s < 2 * measured.timeline.makespan_s


def test_a_killed_process_names_the_rank_that_moved_last_and_its_op():
    with pytest.raises(RankFailed, match=rf"rank 1 failed at 1B2 .*killed by signal {signal.SIGKILL:d}"):
        launch(spec("1f1b", inject=("kill:rank=1,op=1B2",)))


def test_a_layer_that_waited_for_its_turn_names_its_own_rank(monkeypatch):
    """Rank 1 comes to 1F2 and waits; rank 0 comes to 0B2; then rank 1 takes its turn, and ends in it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(Path(__file__).parents[1])
    job = Measure(schedule=to_json(build("1f1b", 2, 8)), microbatch_size=2, iterations=1, warmup=0)
    model, bounds = "faulty_models:stopping:layer=1", ((0, 1), (1, 3))
    with pytest.raises(RankFailed, match=r"^rank 1 failed at 1F2 \(micro-batch 2\): .*its process is stopped"):
        launch(RunSpec(job=job, model=model, bounds=bounds, transport="streams", timeout_s=2.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "nccl", "device": "cuda"}, "backend: got nccl with transport streams, expected processes"),
        ({"compression": "half", "device": "cuda"}, "compression: got half on streams of a GPU"),
    ],
)
def test_settings_that_need_a_process_per_rank_are_refused(settings, message):
    with pytest.raises(ExecutionError, match=message):
        spec("1f1b", **settings)
