"""``simulate``, ``compare``, ``gantt`` and ``trace``."""

import csv
import json

import pytest

from schedules.formats.timeline_json import read_timeline
from tests.trace_rules import check_trace

UNIFORM = "--uniform f=1,b=2"
DEVICE = {"device", "busy_s", "idle_s", "span_s", "idle_by_cause_s", "peak_memory_bytes", "peak_memory_by_kind"}


def test_json_is_data_only_with_the_closed_form_of_gpipe(pipesched):
    answer = pipesched(f"simulate -s gpipe -p 4 -m 8 {UNIFORM} --json")
    assert (answer.code, answer.err) == (0, "")
    data = json.loads(answer.out)
    assert data["makespan_s"] == (8 + 4 - 1) * 3
    assert data["bubble_fraction"] == pytest.approx(3 / 11)
    assert data["throughput"] == 8 / 33
    assert [set(device) for device in data["devices"]] == [DEVICE] * 4
    for device in data["devices"]:
        assert device["busy_s"] + device["idle_s"] == 33
        assert sum(device["idle_by_cause_s"].values()) == device["idle_s"]


def test_stage_costs_and_links_count(pipesched):
    costs = "--stage-costs stages.csv"
    fast = json.loads(pipesched(f"simulate -f mine.csv {costs} --json").out)
    slow = json.loads(pipesched(f"simulate -f mine.csv {costs} --link latency_s=0.01 --json").out)
    assert fast["makespan_s"] == pytest.approx(0.010 + 3 * (0.012 + 0.024) + 0.020)
    assert slow["makespan_s"] > fast["makespan_s"]
    assert fast["devices"][0]["peak_memory_bytes"] > 200_000_000


def test_over_memory_is_the_answer_no_and_says_where(pipesched, folder):
    device = '{"memory_bytes": 300000000}'
    (folder / "small.json").write_text(
        f'{{"format": "pipesched-cluster", "version": 1, "devices": [{device}, {device}], '
        '"intra": {"latency_s": 0, "bandwidth_bytes_per_s": null}}'
    )
    answer = pipesched("simulate -f mine.csv --stage-costs stages.csv --cluster small.json --json")
    assert answer.code == 1
    assert json.loads(answer.out)["fits"] is False
    assert "over memory: device 0" in answer.err
    assert answer.err.count("\n") == 1


def test_every_span_is_written_as_json_and_csv(pipesched, folder):
    for suffix in ("json", "csv"):
        answer = pipesched(f"simulate -f mine.csv {UNIFORM} --timeline t.{suffix} --out all.json")
        assert (answer.code, answer.out) == (0, "")
    timeline = read_timeline(folder / "t.json")
    with (folder / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["op"], float(row["end_s"])) for row in rows] == [(str(s.op), s.end_s) for s in timeline.spans]
    assert json.loads((folder / "all.json").read_text())["makespan_s"] == timeline.makespan_s


def test_a_seed_repeats_the_jitter(pipesched):
    lines = [f"simulate -f mine.csv {UNIFORM} --jitter 0.3 --seed {seed} --json" for seed in (1, 1, 2)]
    first, again, other = (pipesched(line).out for line in lines)
    assert first == again != other


def test_gantt_is_text_or_a_picture(pipesched, folder):
    answer = pipesched(f"gantt -f mine.csv {UNIFORM} --title Mine")
    assert answer.out.startswith("Mine\n")
    assert "rank 1" in answer.out
    assert pipesched(f"gantt -f mine.csv {UNIFORM} --out mine.png").code == 0
    assert (folder / "mine.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_keeps_to_the_rules(pipesched, folder):
    assert check_trace(pipesched("trace -f mine.csv --stage-costs stages.csv").out) == []
    pipesched(f"simulate -f mine.csv {UNIFORM} --timeline t.json")
    assert pipesched("trace t.json --out trace.json").code == 0
    assert check_trace((folder / "trace.json").read_text()) == []


def test_compare_does_the_same_work_in_every_schedule(pipesched, folder):
    answer = pipesched(f"compare --all -p 2 -m 4 -v 2 {UNIFORM} --json")
    rows = {row["name"]: row for row in json.loads(answer.out)}
    assert rows["gpipe"]["makespan_s"] == rows["1f1b"]["makespan_s"] == 15
    assert rows["interleaved"]["makespan_s"] == 13.5
    assert pipesched(f"compare gpipe,1f1b -p 2 -m 4 {UNIFORM} --out t.csv --gantt t.svg").out == ""
    assert (folder / "t.csv").read_text().count("\n") == 3
    assert "<svg" in (folder / "t.svg").read_text()
    assert pipesched(f"compare -s gpipe,mine.csv -p 2 -m 3 {UNIFORM} --out t.md").code == 0
    assert "| mine" in (folder / "t.md").read_text()


def test_two_timelines_are_set_side_by_side(pipesched, folder):
    for name, costs in (("a", "f=1,b=2"), ("b", "f=2,b=4")):
        pipesched(f"simulate -f mine.csv --uniform {costs} --timeline {name}.json")
    found = json.loads(pipesched("compare a.json b.json --json").out)
    assert found["quantities"][0] == {
        "quantity": "makespan_s", "device": None, "predicted": 12.0, "measured": 24.0, "error": -0.5,
    }  # fmt: skip
    assert "makespan" in pipesched("compare a.json b.json").out
    assert pipesched("compare a.json b.json --out t.csv --gantt t.png").out == ""
    assert (folder / "t.csv").exists()
    assert (folder / "t.png").exists()
    assert pipesched("compare a.json b.json -p 2").code == 2
