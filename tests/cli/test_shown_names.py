"""Names are data: whatever is in them is shown, letter by letter, and nothing of it is obeyed."""

import html
import io
import json
import re
import sys
from dataclasses import replace
from functools import partial
from itertools import cycle

import pytest

from pipesched.cli import terminal as output
from pipesched.cli.program import COMMANDS, make_program
from pipesched.executor.runs import Measured, whole_model_losses
from pipesched.schedules import Span, Timeline
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.formats import from_json, to_json
from pipesched.simulator.views import (
    Curve,
    draw_gantt,
    learning_curve_figure,
    save_figure,
    staleness_figure,
    text_gantt,
)
from pipesched.workflows import Table
from tests.hand_timelines import play

NAMES = ["v2 [/try]", "[bold]x[/bold] :factory: of 8", r"$\frac$ and $x_1$", "_x_ *y*", "../up/../x"]
COSTS = "--uniform f=1,b=2"


def named(name):
    schedule = gpipe(2, 2)
    return type(schedule)(name, 2, 2, schedule.ops, schedule.rank_to_device)


SHOWING = (
    "check -f named.json",
    "versions -f named.json --plot v.png",
    f"simulate -f named.json {COSTS}",
    f"compare named.json {COSTS} --gantt both.png",
    f"gantt -f named.json {COSTS}",
    f"compare named.json {COSTS} --json",
    f"compare named.json {COSTS} --format csv",
)


@pytest.mark.parametrize(("line", "name"), [*zip(SHOWING, cycle(NAMES))])
def test_a_schedule_of_any_name_is_shown_by_that_name(pipesched, folder, line, name):
    (folder / "named.json").write_text(to_json(named(name)))
    answer = pipesched(line)
    assert (answer.code, answer.err) == (0, "")
    shown = "".join(row["name"] for row in json.loads(answer.out)["schedules"]) if "--json" in line else answer.out
    assert name in shown


def test_a_schedule_of_any_name_is_run_and_verified_within_the_folder_asked_for(
    pipesched, folder, no_ranks, monkeypatch
):
    def launch(job, tick):
        timeline = replace(play(from_json(job.job.schedule, "job")), source="measured")
        return Measured(timeline, (1.0,), whole_model_losses(job) if job.model else ())

    monkeypatch.setattr("pipesched.executor.runs.launch", launch)
    monkeypatch.setattr("pipesched.workflows.verifying.verification.num_companions", lambda *_: 0)  # no busy cores
    name = "../v2 [/try]"
    (folder / "named.json").write_text(to_json(named(name)))
    ran = pipesched("run -f named.json --uniform f=0.001,b=0.002 --iterations 1")
    assert ran.code == 0
    assert f"{name}, measured" in ran.out
    verified = pipesched("verify mlp:layers=4,width=16 -f named.json --iterations 1 --microbatch-size 2 --out out")
    assert verified.code == 0
    assert verified.out.startswith(name)
    assert len(list((folder / "out").iterdir())) == 5
    assert not [path for path in folder.iterdir() if "try" in path.name]


def test_a_bar_in_a_name_ends_no_cell_of_a_markdown_table(pipesched, folder):
    (folder / "named.json").write_text(to_json(named(r"a|b\|c")))
    head, _, row = pipesched(f"compare named.json {COSTS} --format markdown").out.splitlines()
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", row)  # a bar behind an odd number of backslashes is a letter
    assert len(cells) == len(head.split("|"))


def test_a_model_is_shown_by_its_own_name(pipesched, folder, monkeypatch):
    (folder / "nets_of_mine.py").write_text(
        "from pipesched.profiles.models.model_lookup import resolve_model\n"
        "def factory(depth):\n    return resolve_model(f'mlp:layers={depth},width=8')\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    answer = pipesched("profile nets_of_mine:factory:depth=2 --repeats 1 --out p.json")
    assert answer.code == 0
    assert json.loads((folder / "p.json").read_text())["model"] in answer.out
    assert "nets_of_mine:factory:depth=2" in answer.out


def test_what_controls_a_terminal_is_shown_escaped(pipesched, folder):
    answer = pipesched("simulate -f \x1b[31mred\x07\u202e.csv --uniform f=1,b=2")
    assert answer.code == 2
    assert "\\x1b[31mred\\x07\\u202e.csv" in answer.err
    assert answer.err.rstrip("\n").isprintable()
    title = pipesched(f"gantt -f mine.csv {COSTS} --title \x1b]0;mine\x07").out.splitlines()[0]
    assert title == r"\x1b]0;mine\x07"
    span = Span(0, gpipe(1, 1).ops[0][0], 0.0, 0.0, 1.0)
    assert text_gantt(Timeline("a\nb\rc\x1b[2J", "predicted", (span,), (0,))).startswith(r"a\nb\rc\x1b[2J predicted: ")


def test_cells_titles_and_captions_are_printed_letter_by_letter(capsys):
    output.print_table(Table("[b]t[/b] \x1b[2J", ({"[i]head": "[/] :factory:\n2"},), "[red]one :x:\ntwo"))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == r"[b]t[/b] \x1b[2J"
    assert "[i]head" in lines[2]
    assert r"[/] :factory:\n2" in lines[4]
    assert lines[-2:] == ["[red]one :x:", "two"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("name", ["v2 [/try]", ":factory: of 8"])
def test_progress_on_a_terminal_names_what_runs_letter_by_letter(monkeypatch, name):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress_bar(name) as tick:
        tick(0.5)
    with output.spinner(name, if_long=True):
        pass
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert shown.count(name) >= 2


def test_a_comparison_of_large_files_is_told_on_a_terminal_and_of_small_ones_is_not(monkeypatch, tmp_path):
    small, large = tmp_path / "small [red].json", tmp_path / "large.json"
    small.write_bytes(b"{}")
    large.write_bytes(b" " * 1_000_000)
    monkeypatch.setenv("TERM", "xterm")
    for second, is_told in ((small, False), (large, True)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with output.comparing([small, second]):
            pass
        assert (f"comparing small [red].json and {second.name}" in terminal.getvalue()) is is_told


def drawn_texts(path):
    return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())]


def test_names_in_pictures_are_no_formulas(tmp_path):
    import matplotlib as mpl

    name = r"$\frac$, $x_1$ [/b], 5 $ and \$a$"
    path, line = tmp_path / "picture.svg", play(named(name))
    other = Timeline(line.name, "measured", line.spans, line.rank_to_device)
    curves = [Curve(name, (2.0, 1.0), (0.0, 1.0)), Curve("gpipe", (2.0, 1.5), (0.0, 1.0))]
    drawings = [
        lambda: draw_gantt([line], path), lambda: draw_gantt([line], path, title=name),
        lambda: draw_gantt([line, other], path), lambda: draw_gantt([line, play(gpipe(2, 2))], path),
        *(
            partial(save_figure, drawn, path)
            for drawn in (
                lambda: staleness_figure(named(name), 2), lambda: staleness_figure(named(name), 2, title=name),
                lambda: learning_curve_figure(curves), lambda: learning_curve_figure(curves[1:], title=name),
            )
        ),
    ]  # fmt: skip
    with mpl.rc_context({"svg.fonttype": "none"}):
        for draw in drawings:
            draw()
            assert any(name in text for text in drawn_texts(path))


def test_brackets_in_the_help_are_shown(pipesched):
    for name, command in ((name, make_program().get_command(None, name)) for name in COMMANDS):
        shown = re.sub(r"[\s│]", "", pipesched(f"{name} --help").out)
        for option in command.params:
            for part in re.findall(r"\[.*?\]", getattr(option, "help", None) or ""):
                assert part.replace(" ", "") in shown
    assert "[s]" in pipesched("simulate --help").out


def test_every_option_that_writes_a_file_says_under_which_suffixes(pipesched):
    written = {"out", "plot", "gantt", "log", "timeline", "memory", "job"}
    for name, command in ((name, make_program().get_command(None, name)) for name in COMMANDS):
        for option in command.params:
            if option.name in written and name != "verify":  # which writes a folder
                assert re.search(r"\.(json|csv|png)", option.help), (name, option.name)
