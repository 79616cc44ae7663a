"""``import``: traces of a run become a Timeline that the other commands read."""

import json

import pytest

from tests.profiles.traces.chrome_files import complete, pipeline, write
from tests.profiles.traces.kineto_files import KinetoFile, two_ranks

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


@pytest.mark.parametrize("pattern", ["", r" --pattern ^(?P<phase>[FB])_(?P<stage>\d+),(?P<microbatch>\d+)$"])
def test_all_ranks_in_one_file_and_slices_without_a_category_are_read(pipesched, folder, pattern):
    write(folder / "all.json", complete(pipeline()))
    for rank in (0, 1):
        write(folder / f"rank{rank}.json", complete([work for work in pipeline() if work[0] == rank]))
    for files in ("all.json", "rank0.json rank1.json"):
        answer = pipesched(f"import {files}{pattern} --json")
        assert (answer.code, answer.err) == (0, "")
        report = json.loads(answer.out)
        assert report["makespan_s"] == pytest.approx(0.09)
        assert report["bubble_fraction"] == pytest.approx(1 / 3)  # 4 * 30 ms of 2 * 90
        assert report["notes"] == ([] if pattern else ["passes have the names of PiPPy"])


def test_other_commands_read_the_timeline(pipesched, traces):
    assert pipesched(f"import {FILES} --out run.json").code == 0
    assert "gpipe measured" in pipesched("gantt run.json").out
    assert pipesched("trace run.json --out trace.json").code == 0
    assert "620 us" in pipesched("import trace.json").out


def test_a_run_is_compared_with_a_prediction_of_its_schedule(pipesched, traces):
    two_ranks(traces / "traces", step_us=30)
    assert pipesched(f"import {FILES} --out run.json").code == 0
    costs = "--uniform f=1e-4,b=1e-4,step_s=3e-5"
    assert pipesched(f"simulate -s gpipe -p 2 -m 2 {costs} --timeline predicted.json").code == 0
    compared = json.loads(pipesched("compare predicted.json run.json --format json").out)
    makespan = next(row for row in compared["quantities"] if row["quantity"] == "makespan_s")
    assert makespan["error"] == pytest.approx(630 / 650 - 1)  # messages of 10 us are not in the prediction


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


def test_costs_are_taken_from_a_trace_whose_messages_arrive_while_their_senders_still_post_them(pipesched, traces):
    first = KinetoFile(0).annotation("PP:0F0", 0, 100).slice("cpu_op", "c10d::send", 100, 180)
    first.annotation("gloo:send", 150, 190).annotation("PP:0B0", 190, 450)
    first.slice("cpu_op", "c10d::recv_", 191, 195).annotation("gloo:recv", 193, 350)
    second = KinetoFile(1).annotation("PP:1F0", 0, 210).annotation("PP:1B0", 210, 310)
    second.slice("cpu_op", "c10d::recv_", 1, 5).annotation("gloo:recv", 3, 110)
    second.slice("cpu_op", "c10d::send", 310, 400).annotation("gloo:send", 390, 420)
    for rank, file in enumerate((first, second)):
        file.write(traces / "traces" / f"rank{rank}.json")
    assert pipesched(f"import {FILES} --same-clock --out run.json").code == 0
    assert pipesched("profile --from run.json --warmup 0 --out costs.json").code == 0
    predicted = json.loads(pipesched("simulate -s 1f1b -p 2 -m 1 --stage-costs costs.json --json").out)
    assert [device["busy_s"] for device in predicted["devices"]] == pytest.approx([200e-6, 200e-6])
