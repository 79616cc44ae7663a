"""A builder of the user's own wherever a schedule is taken; docs/own_schedule.md works as it stands there."""

import json
import re
import shlex
import sys
from dataclasses import replace

import pytest

from pipesched.profiles.io import Plan, Predicted, profile_text, save_json
from pipesched.schedules.builders import build
from pipesched.schedules.formats import from_json, timeline_to_json, to_json
from pipesched.schedules.transforms import ScheduleSpec
from tests.cli.conftest import ROOT
from tests.hand_runs import run_by_hand
from tests.profiles.hand_profiles import layer, measurement, profile

PAGE = (ROOT / "docs" / "own_schedule.md").read_text()
BUILDER, SCRIPT = re.findall(r"^```python(?: mine.py)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line, comments=True)[1:] for line in PAGE.splitlines() if line.startswith("pipesched ")]
PLANTED = "from pathlib import Path\nPath(__file__).with_name('PLANTED').touch()\ndef builder(p, m): return []\n"


@pytest.fixture
def page_folder(folder, monkeypatch):
    """Write the builder of the page; what is imported is forgotten again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (folder / "mine.py").write_text(BUILDER)
    (folder / "layers.csv").write_text("f,b\n" + "1,2\n" * 4)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_command_of_the_page_works(pipesched, page_folder, words):
    answer = pipesched(" ".join(words))
    assert (answer.code, answer.err) == (0, "")


def test_the_script_of_the_page_works(page_folder, monkeypatch):
    monkeypatch.syspath_prepend(page_folder)
    names = {}
    exec(compile(SCRIPT, "docs/own_schedule.md", "exec"), names)
    plain, eager = (summary.makespan_s for summary in names["compared"].summaries)
    assert names["deeper"].makespan_s <= eager < plain


def test_the_page_is_right_that_it_is_1f1b_and_more(pipesched, page_folder):
    """With no more ahead it is the catalogue's own 1f1b, but for the name."""
    line = "--out lists.json -p 4 -m 8"
    assert pipesched(f"show -s mine.py:eager --set ahead=1 {line}").code == 0
    lists = from_json((page_folder / "lists.json").read_text(), "lists.json")
    assert (lists.name, lists.ops) == ("mine.py:eager", build("1f1b", 4, 8).ops)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "train digits:width=8,blocks=4 --compare gpipe,mine.py:eager -p 2 --batch-size 8 --steps 2 --uniform f=1,b=2",
        "what-if run.json -s mine:eager --draws 2",
        "export torchtitan -s mine:eager -p 2 -m 4 --partition 2,2 --microbatch-size 1",
    ],
)
def test_every_other_command_takes_it_too(pipesched, page_folder, line):
    (page_folder / "run.json").write_text(timeline_to_json(run_by_hand(build("gpipe", 2, 4), 0.0, 0.0)))
    answer = pipesched(line)
    assert (answer.code, answer.err) == (0, "")


def test_show_writes_lists_that_cannot_run_and_says_so(pipesched, folder):
    (folder / "mine.py").write_text(
        "from pipesched.schedules.ops import backward, forward\n"
        "def dead(p, m): return [[backward(rank, 0), forward(rank, 0)] for rank in range(p)]\n"
    )
    shown = pipesched("show -s mine.py:dead -p 2 -m 1")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "rank 0  0B0 0F0")
    assert shown.err.startswith("pipesched: warning: mine.py:dead: ")
    assert pipesched("check -s mine.py:dead -p 2 -m 1").code == 1
    simulated = pipesched("simulate -s mine.py:dead -p 2 -m 1 --uniform f=1,b=2")
    assert (simulated.code, simulated.err.count("\n")) == (1, 1)
    assert simulated.err.startswith("pipesched: mine.py:dead: ")


def test_no_file_has_a_builder_imported(pipesched, page_folder):
    """Neither a plan, nor lists that say where they are from, nor a run of such lists."""
    (page_folder / "evil.py").write_text(PLANTED)
    spec = ScheduleSpec(name="evil:builder", num_ranks=2, num_microbatches=2)
    plan = Plan(model="mlp:layers=2", schedule_spec=spec, partition=(1, 1), microbatch_size=1, batch_size=2,
                compression=None, predicted=Predicted(1.0, 2.0))  # fmt: skip
    save_json(plan, page_folder / "plan.json")
    for line in ("check --plan plan.json", "run --plan plan.json", "train --plan plan.json"):
        answer = pipesched(line)
        assert (answer.code, answer.err.count("\n")) == (2, 1)
    lists = replace(build("gpipe", 2, 2), name="evil:builder")
    written = json.loads(to_json(lists)) | {"origin": "evil:builder"}
    (page_folder / "lists.json").write_text(json.dumps(written))
    pipesched("simulate -f lists.json --uniform f=1,b=2")
    (page_folder / "run.json").write_text(timeline_to_json(run_by_hand(lists, 0.0, 0.0)))
    assert pipesched("what-if run.json -m 8").code == 2
    assert not (page_folder / "PLANTED").exists()
    pipesched("check -s evil:builder -p 2 -m 2")
    assert (page_folder / "PLANTED").exists(), "so it would have been"


SEARCHED = """
def plain(p, m):
    return eager(p, m, ahead=1)
def choosy(p, m):
    if m < 4:
        raise ValueError("four at least")
    return plain(p, m)
def stepping(p, m):
    return [[op for i in range(m) for op in (forward(rank, i), backward(rank, i), Step(rank))] for rank in range(p)]
"""
TUNE = "tune profile.json -p 2 -b 8 --json --link latency_s=0.25"
PLAN = "plan profile.json -b 8 --devices 2 --depth 2 --recompute no --json --link latency_s=0.25"


@pytest.fixture
def searched_folder(page_folder):
    """Write more builders, and a profile of two layers."""
    (page_folder / "mine.py").write_text(BUILDER.replace("backward, forward", "Step, backward, forward") + SEARCHED)
    layers = [layer(*(measurement(size, 1.0 * size, 2.0 * size) for size in (1, 2, 4))) for _ in range(2)]
    (page_folder / "profile.json").write_text(profile_text(profile(*layers), "profile.json"))
    return page_folder


@pytest.mark.slow
def test_tune_and_plan_find_it_as_good_as_the_schedule_that_it_is(pipesched, searched_folder):
    answer = pipesched(f"{TUNE} -s mine.py:plain,1f1b --workers 1")
    rows = json.loads(answer.out)["settings"]
    assert answer.code == 0
    times = {(row["schedule"], row["num_microbatches"]): row["seconds_per_batch"] for row in rows}
    own_times = {m: time_s for (name, m), time_s in times.items() if name == "mine.py:plain"}
    assert own_times == {m: times["1f1b", m] for m in (2, 4, 8)}
    plans = json.loads(pipesched(f"{PLAN} -s mine.py:plain,1f1b --workers 1").out)["plans"]
    assert {plan["candidate"]["schedule"] for plan in plans} == {"mine.py:plain", "1f1b"}
    assert len({(plan["candidate"]["num_microbatches"], plan["seconds"]) for plan in plans}) == len(plans) / 2 == 3


@pytest.mark.parametrize(
    ("builder", "batch", "words"),
    [
        ("choosy", 2, "schedule mine.py:choosy: got ValueError in line 21 of mine.py: four at least, expected"),
        ("stepping", 8, "schedule mine.py:stepping: got lists that step before their end"),
    ],
)
def test_settings_that_it_cannot_have_are_refused_with_the_reason(pipesched, searched_folder, builder, batch, words):
    rows = json.loads(pipesched(f"{TUNE} -s mine.py:{builder} -m 2").out)["settings"]
    assert next(row["reason"] for row in rows if row["schedule"] != "1f1b").startswith(words)
    answer = pipesched(f"{PLAN} -s mine.py:{builder}".replace("-b 8", f"-b {batch}"))
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert f"no candidate can be predicted; the reason of the first: {words}" in answer.err


def test_a_search_goes_on_unless_the_builder_has_changed(pipesched, searched_folder):
    line = f"{TUNE} -s mine.py:plain --resume found.jsonl"
    first, lines = pipesched(line), (searched_folder / "found.jsonl").read_text()
    assert '"schedule": "mine.py:plain"' in lines
    (searched_folder / "evil.py").write_text(PLANTED)
    more_lines = lines + lines.partition("\n")[2].replace("mine.py:plain", "evil:builder")
    (searched_folder / "found.jsonl").write_text(more_lines)
    assert pipesched(line) == first
    assert (searched_folder / "found.jsonl").read_text() == more_lines
    assert not (searched_folder / "PLANTED").exists()
    with (searched_folder / "mine.py").open("a") as file:
        file.write("# another\n")
    answer = pipesched(line)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "found.jsonl: got the journal of another search" in answer.err
