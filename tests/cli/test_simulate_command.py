"""``simulate``, ``compare``, ``gantt`` and ``trace``."""

import csv
import json
import re

import pytest

from pipesched.profiles.costs import StageCosts
from pipesched.schedules.formats import read_timeline
from pipesched.workflows.arguments import load_costs
from tests.cli.json_answers import data
from tests.trace_rules import check_trace

UNIFORM = "--uniform f=1,b=2"
FORMS = ("table", "csv", "markdown")
DEVICE = {
    "device", "busy_s", "idle_s", "span_s", "idle_by_cause_s", "peak_memory_bytes", "peak_memory_by_kind",
    "peak_microbatches",
}  # fmt: skip


def test_json_is_data_only_with_the_closed_form_of_gpipe(pipesched):
    answer = pipesched(f"simulate -s gpipe -p 4 -m 8 {UNIFORM} --json")
    assert (answer.code, answer.err) == (0, "")
    data = json.loads(answer.out)
    assert data["makespan_s"] == (8 + 4 - 1) * 3
    assert data["bubble_fraction"] == pytest.approx(3 / 11)
    assert data["throughput"] == 8 / 33
    assert data["peak"] is None
    assert [set(device) for device in data["devices"]] == [DEVICE] * 4
    for device in data["devices"]:
        assert device["busy_s"] + device["idle_s"] == 33
        assert sum(device["idle_by_cause_s"].values()) == device["idle_s"]


@pytest.mark.parametrize("schedule", ["1f1b -p 4 -m 8", "zbv -p 3 -m 6"])
def test_the_largest_peak_is_the_first_moment_over_one_byte_less(pipesched, schedule):
    command = f"simulate -s {schedule} --uniform f=1,i=1,w=1,saved_bytes=100,weight_bytes=10,output_bytes=3"
    data = json.loads(pipesched(f"{command} --json").out)
    peak, most = data["peak"], max(device["peak_memory_bytes"] for device in data["devices"])
    assert data["devices"][peak["device"]]["peak_memory_bytes"] == most
    over = pipesched(f"{command} --memory-limit {most - 1}B").err
    where = f"from {peak['time_s']:.6g} s on, at {peak['op']} of rank {peak['rank']}"
    assert re.search(rf"over memory: device {peak['device']} holds .*{re.escape(where)}", over)
    said = f" on, at {peak['op']} of rank {peak['rank']}"
    assert said in " ".join(pipesched(command).out.split())


def test_stage_costs_and_links_count(pipesched):
    costs = "--stage-costs stages.csv"
    fast = json.loads(pipesched(f"simulate -f mine.csv {costs} --json").out)
    slow = json.loads(pipesched(f"simulate -f mine.csv {costs} --link latency_s=0.01 --json").out)
    assert fast["makespan_s"] == pytest.approx(0.010 + 3 * (0.012 + 0.024) + 0.020)
    assert slow["makespan_s"] > fast["makespan_s"]
    assert fast["devices"][0]["peak_memory_bytes"] > 200_000_000


def test_recompute_is_for_all_stages_or_some_of_a_name_or_a_file(pipesched, folder):
    plain, every, some = (
        makespan_s(pipesched, f"-s 1f1b -p 4 -m 8 {option}") for option in ("", "--recompute all", "--recompute 0,1,2")
    )
    assert every == plain + 8
    assert plain < some < every
    assert pipesched("show -s 1f1b -p 2 -m 2 --recompute 1").out == (
        "rank 0  0F0 0F1 0B0 0B1\nrank 1  1F0 1R0 1B0 1F1 1R1 1B1\n"
    )
    rows = data(pipesched, f"compare gpipe,mine.csv -p 2 -m 3 {UNIFORM} --recompute all")["schedules"]
    assert [row["name"] for row in rows] == ["gpipe+R", "mine+R"]


def test_the_bytes_of_every_device_are_written_with_its_microbatches(pipesched, folder):
    line = "simulate -s 1f1b -p 2 -m 3 --uniform f=1,b=2,saved_bytes=100"
    assert pipesched(f"{line} --memory m.csv").code == 0
    with (folder / "m.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {int(row["total_bytes"]) for row in rows} == {0, 100, 200}
    assert all(int(row["total_bytes"]) == 100 * float(row["microbatches"]) for row in rows)


def test_every_span_is_written_as_json_and_csv(pipesched, folder):
    for suffix in ("json", "csv"):
        answer = pipesched(f"simulate -f mine.csv {UNIFORM} --timeline t.{suffix} --out all.json")
        assert (answer.code, answer.out) == (0, pipesched(f"simulate -f mine.csv {UNIFORM}").out)
    timeline = read_timeline(folder / "t.json")
    with (folder / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["op"], float(row["end_s"])) for row in rows] == [(str(s.op), s.end_s) for s in timeline.spans]
    assert (folder / "all.json").read_bytes() == (folder / "t.json").read_bytes()
    assert pipesched("gantt all.json --out all.png").code == 0


def test_a_suffix_in_capitals_says_the_same_as_in_small_letters(pipesched, folder):
    (folder / "stages.csv").rename(folder / "STAGES.CSV")
    for json_name, csv_name in (("json", "csv"), ("JSON", "CSV")):
        assert pipesched(f"show -f mine.csv --out lists.{json_name}") == (0, "", "")
        spans = f"simulate -f lists.{json_name} --stage-costs STAGES.CSV --timeline spans.{csv_name} --out all.json"
        assert pipesched(spans).code == 0
    for name in ("lists.json", "spans.csv"):
        stem, suffix = name.split(".")
        assert (folder / name).read_bytes() == (folder / f"{stem}.{suffix.upper()}").read_bytes()
    assert isinstance(load_costs(str(folder / "STAGES.CSV")), StageCosts)


def test_gantt_is_text_or_a_picture(pipesched, folder):
    answer = pipesched(f"gantt -f mine.csv {UNIFORM} --title Mine")
    assert answer.out.startswith("Mine\n")
    assert "rank 1" in answer.out
    assert pipesched(f"gantt -f mine.csv {UNIFORM} --out mine.png").code == 0
    assert (folder / "mine.png").read_bytes().startswith(b"\x89PNG")


def test_gantt_shows_a_part_of_the_time_with_idle_causes_and_memory(pipesched, folder):
    bytes_too = f"{UNIFORM},saved_bytes=1e6 --memory-limit 5MiB"
    assert pipesched(f"gantt -f mine.csv {bytes_too} --from 2s --to 5000ms --idle --memory --out x.svg").code == 0
    text = (folder / "x.svg").read_text()
    assert "shown from 2 s to 5 s" in text
    assert {">idle time:</text>", ">memory:</text>", ">limit</text>"} <= set(re.findall(">[a-z :]+</text>", text))
    assert pipesched(f"gantt -f mine.csv {UNIFORM} --from 2s --columns 60").out.splitlines()[-2].split() == [
        "2", "s", "12", "s",
    ]  # fmt: skip


def test_gantt_is_as_wide_as_the_terminal(pipesched, monkeypatch):
    monkeypatch.setenv("COLUMNS", "66")
    assert {len(line) for line in pipesched(f"gantt -s 1f1b -p 2 -m 4 {UNIFORM}").out.splitlines()[1:3]} == {66}


@pytest.mark.parametrize(
    "line",
    [
        f"gantt -f mine.csv {UNIFORM} --out x.html",
        f"simulate -f mine.csv {UNIFORM},saved_bytes=1e6 --memory-limit 5MiB --out x.html",
        f"simulate -f mine.csv {UNIFORM} --timeline x.html --out y.json",
        f"compare mine.csv,gpipe -p 2 -m 4 {UNIFORM} --out x.html",
        f"compare mine.csv -p 2 -m 4 {UNIFORM} --gantt x.html --out y.md",
        "compare a.json m.json --out x.html",
        "replay m.json --gantt x.html",
    ],
)
def test_a_page_is_written_where_it_is_asked_for(pipesched, two, line):
    assert pipesched(line).code == 0
    page = (two / "x.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert ('"limit":5242880' in page) == ("--memory-limit" in line)
    assert ("y." in line) == any(path.stem == "y" for path in two.iterdir())


def test_a_trace_keeps_to_the_rules(pipesched, folder):
    assert check_trace(pipesched("trace -f mine.csv --stage-costs stages.csv").out) == []
    pipesched(f"simulate -f mine.csv {UNIFORM} --timeline t.json")
    assert pipesched("trace t.json --out trace.json").code == 0
    assert check_trace((folder / "trace.json").read_text()) == []


@pytest.fixture
def two(pipesched, folder):
    """Two predictions of one schedule, a and b, which takes twice as long, and a measurement, m, which is as b."""
    for name, costs in (("a", "f=1,b=2"), ("b", "f=2,b=4")):
        pipesched(f"simulate -f mine.csv --uniform {costs} --timeline {name}.json")
    measured = (folder / "b.json").read_text().replace('"source": "predicted"', '"source": "measured"')
    (folder / "m.json").write_text(measured)
    return folder


@pytest.mark.parametrize("files", ["a.json m.json", "m.json a.json"])
def test_a_prediction_and_a_measurement_are_told_by_what_the_files_say_and_not_by_their_order(pipesched, two, files):
    comparison = json.loads(pipesched(f"compare {files} --json").out)
    assert comparison["quantities"][0] == {
        "quantity": "makespan_s", "device": None, "predicted": 12.0, "measured": 24.0, "error": -0.5,
    }  # fmt: skip
    assert "names" not in comparison
    answer = pipesched(f"compare {files}").out
    assert "error = (predicted - measured) / measured" in answer
    assert "\nmakespan: predicted 12 s, measured 24 s, error -50.0%\n" in answer
    assert pipesched(f"compare {files} --out t.csv --gantt t.png").out == answer
    assert (two / "t.csv").read_text().splitlines()[:2] == [
        "quantity,device,predicted,measured,error,costs,hand_over,rest", "makespan_s,,12.0,24.0,-0.5,-0.5,0.0,0.0",
    ]  # fmt: skip
    assert (two / "t.png").exists()


def test_two_predictions_are_called_as_their_files_and_differ_relative_to_the_first(pipesched, two):
    comparison = data(pipesched, "compare b.json a.json")
    assert comparison["names"] == ["b", "a"]
    assert comparison["quantities"][0] == {
        "quantity": "makespan_s", "device": None, "first": 24.0, "second": 12.0, "difference": -0.5,
    }  # fmt: skip
    table, commas, markdown = (pipesched(f"compare b.json a.json --format {form}").out for form in FORMS)
    assert "\nmakespan: b 24 s, a 12 s, difference -50.0%\n" in table
    assert "difference = (a - b) / b" in table
    assert "4 s in b, 2 s in a" in table
    assert " 0-1 │" in table, "equal devices are one row"
    assert not any(word in table + commas + markdown for word in ("error", "predicted", "measured"))
    assert commas.splitlines()[1] == "b,a,makespan_s,,24.0,12.0,-0.5"
    assert "| quantity          | device |    b |    a | difference |" in markdown


@pytest.mark.parametrize(
    ("places", "named", "expected"),
    [
        (("x/run.json", "y/run.json"), "mine", ["x/run", "y/run"]),
        (("x/run.json", "y/run.json"), "other", ["mine", "other"]),
        (("a.json", "difference.json"), "mine", ["a 1", "difference 2"]),
    ],
)
def test_files_of_one_name_are_told_apart(pipesched, two, places, named, expected):
    for place, source in zip(places, ("a.json", "b.json"), strict=True):
        (two / place).parent.mkdir(exist_ok=True)
        (two / place).write_text((two / source).read_text())
    last = two / places[1]
    last.write_text(last.read_text().replace('"name": "mine"', f'"name": "{named}"'))
    comparison = json.loads(pipesched(f"compare {' '.join(places)} --json").out)
    assert comparison["names"] == expected


def makespan_s(pipesched, options):
    answer = pipesched(f"simulate {UNIFORM},output_bytes=100 --json {options}")
    assert (answer.code, answer.err) == (0, "")
    return json.loads(answer.out)["makespan_s"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", 6.0 + 2.0),  # two forwards of 1 s, two backwards of 2 s, a message of 1 s there and back
        ("--slow device=1,factor=3", 6.0 + 2.0 + 2 * 3.0),
        ("--slow link=1-0,factor=2", 6.0 + 4.0),
        ("--slow device=0,factor=2 --slow link=0-1,factor=2", 9.0 + 4.0),
        ("--compression half", 6.0 + 2 * 0.58),
        ("--compression half --convert-bytes-per-s 50", 6.0 + 2 * 0.58 + 4 * 2.0),
        ("--sends blocking --chunk-bytes 10B --protocol eager", 8.0),
    ],
)
def test_stragglers_slow_links_and_compression_take_what_they_must(pipesched, options, expected):
    line = f"-s naive -p 2 -m 1 --link bandwidth_bytes_per_s=100 {options}"
    assert makespan_s(pipesched, line) == pytest.approx(expected, rel=1e-12)


def test_the_way_of_every_reduction_is_said(pipesched):
    machines = "--nodes 2 --gpus 2 --nics 1 --intra latency_s=0 --inter latency_s=0.5,bandwidth_bytes_per_s=10"
    line = f"simulate -s data_parallel -p 4 -m 4 {UNIFORM},weight_bytes=10 {machines} --json"  # 40 bytes on each of 4
    (reduction,) = json.loads(pipesched(line).out)["reductions"]
    assert reduction == {"stage": 0, "devices": [0, 1, 2, 3], "way": "hierarchical", "seconds": 2 * (2 * 1.0 + 0.5)}


FAILURES = "--fail-every 3h --restart 120s --checkpoint 20s --steps 1000"


def test_goodput_under_failures_is_told_drawn_and_written(pipesched, folder):
    line = f"simulate -s gpipe -p 4 -m 8 {UNIFORM} {FAILURES} --checkpoint-every 100"
    answer = pipesched(f"{line} --out goodput.png --out goodput.svg --json")
    data = json.loads(answer.out)
    goodput = data["goodput"]
    assert (answer.code, goodput["step_s"], goodput["fail_every_s"]) == (0, 33, 10_800)
    assert goodput["young_interval_s"] == pytest.approx((2 * 20 * 10_800) ** 0.5)
    assert goodput["intervals"].keys() == {"best", "Young", "Daly", "given"}
    assert goodput["intervals"]["best"]["goodput"] == max(point["goodput"] for point in goodput["curve"])
    assert goodput["intervals"]["given"]["interval_s"] == 3300
    assert "checkpoint interval [" in (folder / "goodput.svg").read_text()
    assert (folder / "goodput.png").read_bytes()[:4] == b"\x89PNG"
    shown = pipesched(line.replace("3h", "12h/device")).out
    assert max(map(len, shown.splitlines())) <= 80
    assert "a failure every 3 h, 2 min for a restart, 20 s for a checkpoint; 1000 draws" in " ".join(shown.split())


def test_a_step_of_a_training_takes_the_steady_state(pipesched):
    """16 micro-batches of 3 s each, and 3 (p - 1) more where a flush drains the pipe."""
    for schedule, step_s in (("pipedream", 48), ("1f1b", 57)):
        assert data(pipesched, f"simulate -s {schedule} -p 4 -m 16 {UNIFORM} {FAILURES}")["goodput"]["step_s"] == step_s
