"""A builder of the user's own wherever a schedule is taken; docs/own_schedule.md works as it stands there."""

import json
import re
import shlex
import sys
from dataclasses import replace

import pytest

from pipesched.profiles.io import Plan, Predicted, profile_text, save_plan
from pipesched.schedules.builders import build
from pipesched.schedules.formats import from_json, timeline_to_json, to_json
from pipesched.schedules.transforms import ScheduleSpec
from tests.cli.conftest import ROOT
from tests.hand_runs import run_by_hand
from tests.profiles.hand_profiles import layer, profile

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


@pytest.mark.parametrize(
    "line",
    [
        "trace -s mine:eager -p 2 -m 4 --uniform f=1,b=2 --out trace.json",
        "versions -s mine:eager -p 2 -m 4",
        "train digits:width=8,blocks=4 --compare gpipe,mine.py:eager -p 2 --batch-size 8 --steps 2 --uniform f=1,b=2",
        "train digits:width=8,blocks=4 -s mine.py:eager -p 2 --batch-size 8 --steps 2 --uniform f=1,b=2 --job job.json",
        "what-if run.json -s mine:eager --draws 2",
    ],
)
def test_every_other_command_takes_it_too(pipesched, page_folder, line):
    pipesched("run -s gpipe -p 2 -m 4 --uniform f=0.001,b=0.002 --out run.json") if "run.json" in line else None
    answer = pipesched(line)
    assert (answer.code, answer.err) == (0, "")


def test_show_writes_lists_that_cannot_run_and_says_so(pipesched, folder):
    (folder / "mine.py").write_text(
        "from pipesched.schedules import backward, forward\n"
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
    save_plan(plan, page_folder / "plan.json")
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


@pytest.mark.parametrize(
    "line", ["tune profile.json -p 2 -b 4 -s 1f1b,mine:eager", "plan p.json -b 4 --devices 2 -s mine:eager"]
)
def test_searches_refuse_them_with_what_to_do(pipesched, page_folder, line):
    (page_folder / "profile.json").write_text(profile_text(profile(layer(), layer()), "profile.json"))
    answer = pipesched(line)
    assert answer.code == 2
    assert "got mine:eager, a builder of your own, expected schedules of the catalogue" in answer.err
    assert answer.err.endswith("try 'pipesched sweep', which takes any\n")
