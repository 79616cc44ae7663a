"""What a command says beside its answer: notes on what not to believe, files that it wrote, and how far it is."""

import json
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pipesched.cli import terminal
from pipesched.cli.commands import run as run_command
from pipesched.cli.program import COMMANDS, make_program
from pipesched.executor.runs import Measured
from pipesched.schedules.builders import build
from tests.cli.json_answers import FILES, documented
from tests.hand_timelines import play

DATA = Path(__file__).parents[2] / "profiles" / "data"
GPT = DATA / "gpt-10m-epyc.json"


@pytest.mark.parametrize(
    "line",
    [
        "simulate -s 1f1b -p 2 -m 4 --profile {gpt} --nodes 1 --machine dgx-a100",
        "compare gpipe,1f1b -p 2 -m 4 --profile {gpt} --nodes 1 --machine dgx-a100",
        "gantt -s 1f1b -p 2 -m 4 --profile {gpt} --nodes 1 --machine dgx-a100",
    ],
)
def test_a_profile_of_a_cpu_on_a_machine_of_gpus_is_noted_once(pipesched, line):
    line = line.format(gpt=GPT)
    (note,) = json.loads(pipesched(f"{line} --json").out)["notes"]
    assert "not on the GPUs of dgx-a100" in note
    assert " ".join(pipesched(line).out.split()).count(note) == 1
    other = line.replace("--machine dgx-a100", "--gpus 2 --intra latency_s=0")
    assert json.loads(pipesched(f"{other} --json").out)["notes"] == []


@pytest.mark.parametrize(
    "line",
    [
        "partition {gpt} -p 2",
        "plan {gpt} -b 4 --devices 2 -s gpipe --top 1",
        "tune {gpt} -b 4 --ranks 2 -s gpipe",
        "sweep -s gpipe -p 2 -m 4 --profile {gpt}",
    ],
)
def test_a_profile_of_a_cpu_on_a_machine_of_ones_own_is_noted_once(pipesched, folder, line):
    node = json.loads((DATA / "machines" / "dgx-a100.json").read_text(encoding="utf-8"))
    (folder / "mine.json").write_text(json.dumps(node | {"origin": "mine"}), encoding="utf-8")
    (note,) = json.loads(pipesched(f"{line.format(gpt=GPT)} --nodes 1 --machine mine.json --json").out)["notes"]
    assert "not on the GPUs of mine.json" in note


def test_more_ranks_than_cores_and_a_busy_machine_are_noted_of_a_run(pipesched, no_ranks, monkeypatch):
    class Busy:
        def others(self):
            return 0.75

    def launch(job, tick):
        return Measured(replace(play(build("gpipe", 2, 2)), source="measured"), (1.0,), ())

    monkeypatch.setattr("pipesched.executor.runs.launch", launch)
    monkeypatch.setattr(run_command, "LoadMeter", Busy)
    monkeypatch.setattr("pipesched.workflows.notes.num_cores", lambda: 1)
    awake, asleep = (
        json.loads(pipesched(f"run -s gpipe -p 2 -m 2 {stages} --json").out)["notes"]
        for stages in ("--model mlp:layers=2,width=4", "--uniform f=1ms,b=1ms")
    )
    assert any(note.startswith("2 ranks share 1 core") for note in awake)
    assert not any("share" in note for note in asleep)
    for notes in (awake, asleep):
        assert any(note.startswith("other programs kept 0.8 of 1 core") for note in notes)


@pytest.mark.parametrize(
    ("line", "wrote"),
    [
        ("show -f mine.csv --out lists.json", ["lists.json"]),
        (
            "simulate -f mine.csv --uniform f=1,b=2 --timeline t.json --memory m.csv --out s.json",
            ["t.json, m.csv, s.json"],
        ),
        ("compare gpipe,1f1b -p 2 -m 4 --uniform f=1,b=2 --out t.md --json", ["t.md"]),
        ("gantt -f mine.csv --uniform f=1,b=2 --out g.svg", ["g.svg"]),
        ("trace -f mine.csv --uniform f=1,b=2 --out t.json", ["t.json"]),
        ("simulate -f mine.csv --uniform f=1,b=2", []),
        ("simulate -f mine.csv --uniform f=1 --out s.json", []),
    ],
)
def test_every_file_that_is_written_is_said(pipesched, folder, line, wrote):
    before = set(folder.iterdir())
    for _ in range(2):  # what is written over is written too
        pipesched(line)
        assert pipesched.wrote == wrote
    assert {path.name for path in set(folder.iterdir()) - before} == {
        name for names in wrote for name in names.split(", ")
    }


def test_work_that_takes_long_says_now_and_then_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(terminal._Lines, "every_s", 0.01)
    with terminal.progress_bar("tuning") as tick:
        tick(0.25)
        said = ""
        while said.count("25%\n") < 2:
            time.sleep(0.01)
            said += capsys.readouterr().err
    before = r"(pipesched: tuning: \d+ s\n)*"  # a line may come before it has gone anywhere
    assert re.fullmatch(before + r"(pipesched: tuning: \d+ s, 25%\n)+", said)


def test_every_command_with_json_is_documented():
    """That the keys are those of the page is asked of every answer in the tests of the commands."""

    commands = {name: make_program().get_command(None, name) for name in COMMANDS}
    with_json = {name for name, command in commands.items() if "--json" in {o for p in command.params for o in p.opts}}
    assert with_json - documented().keys() == {*FILES} - {"trace"}
    assert set(COMMANDS) - with_json == {"trace"}
    for name in with_json & documented().keys():
        assert all(always for always, _ in documented()[name])


@pytest.mark.parametrize(
    "line",
    [
        "show -f mine.csv", "export megatron -s 1f1b -p 2 -m 8 --partition 5,5 --microbatch-size 2",
        "profile gpt --gpu h100", "simulate -f mine.csv --uniform f=1,b=2 --jitter 0.1 --runs 3",
        "gantt -f mine.csv --uniform f=1,b=2", "tune {gpt} -p 2 -b 4 -n 1 --evaluator avgpipe",
    ],
)  # fmt: skip
def test_an_answer_has_the_keys_of_the_page(pipesched, line):
    answer = json.loads(pipesched(f"{line.format(gpt=GPT)} --json").out)
    assert {"format", "version"} <= answer.keys()


def test_times_without_any_unit_are_said_to_be_seconds(pipesched, folder):
    (folder / "bare.csv").write_text("layer,f,b\nfirst,1,2\nlast,1,2\n")
    (folder / "said.csv").write_text("layer,f_s,b_s\nfirst,1,2\nlast,1,2\n")
    line = "simulate -s 1f1b -p 2 -m 2 --layer-costs {} --json"
    notes = [json.loads(pipesched(line.format(name)).out)["notes"] for name in ("bare.csv", "said.csv")]
    assert notes[1] == []
    assert notes[0][0].startswith(
        "bare.csv: times without a unit are read as seconds: 'f', 'b'; for other units write f_ms"
    )
    assert "times without a unit are read as seconds" in pipesched("profile --layer-costs bare.csv").out
    (folder / "stages.csv").write_text("stage,f,b\n0,1,2\n1,1,2\n")
    assert "seconds: 'f', 'b'" in pipesched("simulate -s 1f1b -p 2 -m 2 --stage-costs stages.csv").out
    for other in ("plan bare.csv --microbatch-sizes 1 -b 2 --devices 2 --json", "partition bare.csv -p 2 --json"):
        assert "seconds: 'f', 'b'" in json.loads(pipesched(other).out)["notes"][0]


def test_a_profile_of_layers_that_several_gpus_share_is_noted(pipesched):
    pipesched("profile gpt:layers=4,width=64,heads=4 --gpu h100 --tp 2 --microbatch-sizes 1 --out p.json")
    for line in ("simulate -s 1f1b -p 2 -m 2 --profile p.json", "partition p.json -p 2 --by time"):
        notes = json.loads(pipesched(f"{line} --nodes 1 --machine dgx-h100 --json").out)["notes"]
        assert "2 devices are 4 GPUs" in notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "simulate -s 1f1b -p 2 -m 4 --profile {gpt} --nodes 1 --machine dgx-a100",
        "compare gpipe,interleaved -p 2 -m 4 -v 2 --profile {gpt} --memory-limit 1GB",
        "plan {gpt} -b 4 --devices 2 --memory-limit 100MB --top 2",
        "sweep -s gpipe,interleaved -p 2 -m 4 -v 2 --profile {gpt} --memory-limit 1GB --workers 1",
    ],
)
def test_a_page_has_every_note_that_is_printed(pipesched, folder, line):
    line = line.format(gpt=GPT)
    printed = pipesched(f"{line} --wide").out
    assert pipesched(f"{line} --out page.html").code == 0
    page = json.loads(re.search(r'id="data">(.*)</script>', (folder / "page.html").read_text())[1])
    told = page["notes"]
    lines = [*printed.splitlines(), ""]
    notes = [
        line.strip()
        for line, after in pairwise(lines)
        if line and line[0] not in "┏┃┡│└" and not after.startswith("┏")  # nor a table or its title
        if not line.startswith(("bubble fraction: ", "all with ")) and not line.endswith("(--top, --out)")
    ]
    assert notes
    assert [note for note in notes if note not in told] == []
