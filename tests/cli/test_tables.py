"""Tables of the command line fit the terminal: whole numbers and names, as many columns as there is room for."""

from pathlib import Path

import pytest

from pipesched.cli import terminal
from pipesched.workflows import Table

GPT = Path(__file__).parents[2] / "profiles" / "data" / "gpt-10m-epyc.json"

ROWS = [
    {"schedule": "interleaved", "bubble of longest span": "27.27 %", "idle by cause": "warmup 10 ms, transfer 2 ms"},
    {"schedule": "1f1b", "bubble of longest span": "4.5 %", "idle by cause": "none"},
]


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return a function that prints ROWS on a terminal of some columns, and returns the lines."""

    def at(num_columns):
        import rich.console

        class Terminal(rich.console.Console):
            def __init__(self):
                super().__init__(force_terminal=True, width=num_columns, color_system=None)

        monkeypatch.setattr(rich.console, "Console", Terminal)
        terminal.print_table(Table("", tuple(ROWS)))
        return capsys.readouterr().out.splitlines()

    return at


@pytest.mark.parametrize("num_columns", [80, 56, 52])
def test_no_line_is_wider_than_the_terminal_and_no_cell_is_cut(printed, num_columns):
    lines = printed(num_columns)
    assert max(map(len, lines)) <= num_columns
    text = "\n".join(lines)
    assert "…" not in text
    assert all(cell in text for cell in ("interleaved", "27.27 %", "warmup", "transfer"))


def test_a_column_in_which_nothing_stands_is_left_out_unless_all_are_asked_for(capsys, monkeypatch):
    rows = [{"schedule": "1f1b", "memory": "-", "fits": "", "makespan": "1 s"}]
    terminal.print_table(Table("", tuple(rows)))
    narrow = capsys.readouterr().out
    monkeypatch.setattr(terminal._Columns, "are_all_shown", True)
    terminal.print_table(Table("", tuple(rows)))
    assert [("memory" in text, "fits" in text) for text in (narrow, capsys.readouterr().out)] == [
        (False, False),
        (True, True),
    ]


def test_a_name_that_is_longer_than_the_terminal_is_folded_and_leaves_room_for_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal.print_table(Table("", ({"schedule": "x" * 70, "makespan": "12.5 s"},)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert "".join(lines).count("x") == 70
    assert "12.5 s" in "".join(lines)


def test_columns_for_which_there_is_no_room_are_named(printed):
    lines = printed(30)
    assert " ".join(map(str.strip, lines[-2:])) == "--wide also shows: idle by cause"
    assert "warmup" not in "\n".join(lines)
    assert max(map(len, lines)) <= 30


COSTS = "--uniform f=1,i=1,w=1,saved_bytes=1e9 --memory-limit 8GB"


@pytest.mark.parametrize(
    ("line", "core", "wide"),
    [
        (f"compare gpipe,1f1b,interleaved_zb -p 4 -m 16 {COSTS}", "schedule steady memory fits", "weight versions"),
        ("simulate -s 1f1b -p 4 -m 16 --profile {gpt}", "device busy idle memory flight cause", "span"),
        ("versions -s spectrain -p 4 -m 16", "stage ranks behind live flight same", "F ahead"),
        ("list", "name what flush", "source"),
        ("plan {gpt} -b 64 --nodes 2 --machine dgx-a100 --top 2", "width schedule size step samples/s memory", "sent"),
        ("partition {gpt} -p 4 --by time", "stage layers devices micro-batch reduce memory", "weights"),
        ("tune {gpt} -p 2 -b 16 -m 4 -n 2 --evaluator avgpipe", "schedule pipeline time memory plain", "samples/s"),
    ],
)
def test_a_command_shows_its_core_columns_in_80_and_all_of_them_if_asked(pipesched, monkeypatch, line, core, wide):
    monkeypatch.setenv("COLUMNS", "80")
    line = line.format(gpt=GPT)
    narrow = pipesched(line).out.splitlines()
    assert [text for text in narrow if len(text) > 80 and not text.startswith("    pipesched ")] == []
    assert not any("…" in text for text in narrow)
    assert set(core.split()) <= {word for text in narrow for word in text.split()}
    assert any(wide in text for text in narrow if text.startswith(("--wide also shows: ", "  ")))
    assert any(wide in text for text in pipesched(f"{line} --wide").out.splitlines() if text.startswith("┃"))
    assert "--wide also" not in pipesched(f"{line} --wide").out
    assert not terminal._Columns.are_all_shown  # the next command has its own width


@pytest.mark.parametrize(
    "line",
    [
        "list",
        "check -f mine.csv",
        "simulate -f mine.csv --stage-costs stages.csv",
        "show -s 1f1b -p 2 -m 4",
        "gantt -f mine.csv --uniform f=1,b=2",
    ],
)
def test_a_command_prints_its_table_whatever_the_width_of_the_terminal(pipesched, monkeypatch, line):
    for columns in (1, 2, 5, 12, 20, 0, -80, 10**9, "x", "1.5", "", "²", "9" * 5000):
        monkeypatch.setenv("COLUMNS", str(columns))
        answer = pipesched(line)
        assert (answer.code, answer.err) == (0, ""), columns
        assert answer.out.strip()
        assert max(map(len, answer.out.splitlines())) <= 10_000
