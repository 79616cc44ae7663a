"""``import``: traces of a run become a Timeline that the other commands read."""

import json

import pytest

from tests.profiles.traces.kineto_files import two_ranks

FILES = "traces/rank1.json traces/rank0.json"


@pytest.fixture
def traces(folder):
    (folder / "traces").mkdir()
    two_ranks(folder / "traces")
    return folder


def test_the_bubble_of_a_run_is_told_with_its_causes(pipesched, traces):
    answer = pipesched(f"import {FILES} --json")
    assert (answer.code, answer.err) == (0, "")
    report = json.loads(answer.out)
    # GPipe of 2 micro-batches on 2 ranks, ops of 100 us, messages of 10 us: 620 us, each rank busy for 400
    assert report["makespan_s"] == pytest.approx(620e-6)
    assert report["bubble_fraction"] == pytest.approx(1 - 400 / 620)
    assert sum(report["bubble_by_cause"].values()) == pytest.approx(report["bubble_fraction"])
    assert report["wait_by_stage"] == pytest.approx({"1": 220 / 1240})  # rank 0, from its last F to its first gradient
    first, second = report["devices"]
    assert first["idle_by_cause_s"]["downstream"] == pytest.approx(210e-6)
    assert first["idle_by_cause_s"]["transfer"] == pytest.approx(10e-6)
    assert second["idle_by_cause_s"]["warmup"] == pytest.approx(110e-6)
    assert second["idle_by_cause_s"]["cooldown"] == pytest.approx(110e-6)
    assert [rank["file"] for rank in report["ranks"]] == ["traces/rank0.json", "traces/rank1.json"]
    assert report["ranks"][1]["clock_uncertainty_s"] == pytest.approx(10e-6)


def test_the_summary_names_ranks_ops_bubble_and_how_far_clocks_are_known(pipesched, traces):
    answer = pipesched(f"import {FILES} --wide")
    assert (answer.code, answer.err) == (0, "")
    for text in (
        "rank0.json",
        "+0 +- 10 us",
        "makespan 620 us",
        "bubble 35.48% of all",
        "warmup 8.9%",
        "17.7% for stage 1",
        "within 10 us",
    ):
        assert text in answer.out
    assert "aligned" not in pipesched(f"import {FILES} --same-clock").out


def test_other_commands_read_the_timeline(pipesched, traces):
    assert pipesched(f"import {FILES} --out run.json").code == 0
    assert "gpipe measured" in pipesched("gantt run.json").out
    assert pipesched("trace run.json --out trace.json").code == 0
    assert "620 us" in pipesched("import trace.json").out


@pytest.mark.parametrize("order", ["predicted.json run.json", "run.json predicted.json"])
def test_a_trace_without_optimizers_is_compared_with_a_prediction_that_has_them(pipesched, traces, order):
    assert pipesched(f"import {FILES} --out run.json").code == 0
    costs = "--uniform f=1e-4,b=1e-4,step_s=3e-5"
    assert pipesched(f"simulate -s gpipe -p 2 -m 2 {costs} --timeline predicted.json").code == 0
    answer = pipesched(f"compare {order} --format json")
    assert (answer.code, answer.err) == (0, "")
    compared = json.loads(answer.out)
    makespan = next(row for row in compared["quantities"] if row["quantity"] == "makespan_s")
    assert makespan["predicted"] == pytest.approx(600e-6)  # (2 + 1) * 200 us: without the steps of 30 us
    assert makespan["error"] == pytest.approx(600 / 620 - 1)
    busy = [row["predicted"] for row in compared["quantities"] if row["quantity"] == "busy_s"]
    assert busy == pytest.approx([400e-6, 400e-6])
    assert compared["notes"][0] == "only the predicted run has Step ops (60 us in all): left out of the comparison"
    assert "only the predicted run has Step ops" in pipesched(f"compare {order}").out
