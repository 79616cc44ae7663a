"""`pipesched profile --from` and `pipesched what-if`, on a run made by hand."""

import json

import pytest

from pipesched.schedules.builders import build
from pipesched.schedules.formats import timeline_to_json
from tests.cli.json_answers import data
from tests.hand_timelines import play

CHANGES = "--link latency=x0.5 --slow device=1,factor=1.2 --slow link=0-1,factor=2 -m 6 --recompute all --draws 5"


@pytest.fixture
def run(folder):
    (folder / "run.json").write_text(timeline_to_json(play(build("gpipe", 2, 4), 0.25, source="measured")))
    return folder / "run.json"


def test_costs_of_a_run_are_costs_to_other_commands(pipesched, run):
    assert pipesched("profile --from run.json --out costs.json").code == 0
    given, costs = pipesched("profile --from run.json --json"), json.loads(run.with_name("costs.json").read_text())
    assert json.loads(given.out) == costs

    for option in ("--stage-costs", "--profile"):
        answer = pipesched(f"simulate -s 1f1b -p 2 -m 8 {option} costs.json --json")
        assert json.loads(answer.out)["makespan_s"] == play(build("1f1b", 2, 8), 0.25).makespan_s
    free = pipesched("simulate -s 1f1b -p 2 -m 8 --stage-costs costs.json --link latency_s=0 --json")
    assert json.loads(free.out)["makespan_s"] == play(build("1f1b", 2, 8)).makespan_s
    assert pipesched("compare gpipe,1f1b -p 2 -m 8 --stage-costs costs.json").code == 0


def test_several_changes_at_once_are_told_in_a_table_of_80_columns(pipesched, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    answer = pipesched(f"what-if run.json {CHANGES} --gantt change.png")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert max(len(line.rstrip()) for line in lines if "│" in line or "━" in line) <= 80
    asked = "gpipe+R, 6 micro-batches, device 1 x1.2 slower, link 0-1 x2 slower, latency x0.5"
    assert " ".join(answer.out.split()).startswith(f"what if: {asked} ")
    assert "in 80 % of 5 draws" in answer.out
    assert "supposed: R is taken to be as long as F" in lines
    assert run.with_name("change.png").exists()


def test_data_say_before_and_after(pipesched, run):
    line = "what-if run.json -s 1f1b -m 8 --draws 3"
    answer = data(pipesched, line)
    assert [row["quantity"] for row in answer["quantities"]][:2] == ["makespan_s", "micro-batch_s"]
    assert answer["quantities"][0]["after"] == play(build("1f1b", 2, 8), 0.25).makespan_s
    assert answer["draws"] == 3
    assert pipesched(f"{line} --out found.json").code == 0
    assert json.loads(run.with_name("found.json").read_text()) == answer
    assert data(pipesched, "what-if run.json -f mine.csv --draws 2")["schedule"] == "mine"


@pytest.fixture
def slow_run(folder):
    """Write a run whose stage 2 takes 1.3 times as long as the others."""
    run = play(build("1f1b", 4, 8), source="measured", seconds=lambda op: 1.3 if op.stage == 2 else 1.0)
    (folder / "slow.json").write_text(timeline_to_json(run))
    return run


def test_slow_layers_and_a_slow_device_have_an_answer_each(pipesched, slow_run):
    line = "what-if slow.json -s interleaved -v 2 --draws 2"
    both, layers, device = (data(pipesched, line + said) for said in ("", " --slowness layers", " --slowness device"))
    assert [both["change"], both["change_if_slow_device"]] == [layers["change"], device["change"]]
    assert both["interval"] == pytest.approx(sorted((layers["change"], device["change"])))
    said = " ".join(pipesched(line).out.split())
    assert "stage 2 on device 2 took 1.3 times as long as its peers." in said
    assert "set --slowness layers or device" in said


def test_import_names_the_straggler(pipesched, slow_run):
    assert pipesched("trace slow.json --out trace.json").code == 0
    said = " ".join(pipesched("import trace.json").out.split())
    assert "stage 2 is 1.3 times slower than its peers; the chain of waits ends there for" in said
    straggler = json.loads(pipesched("import trace.json --json").out)["straggler"]
    assert (straggler["stages"], straggler["ranks"], straggler["is_device"]) == ([2], [2], False)
    assert straggler["factor"] == pytest.approx(1.3)
