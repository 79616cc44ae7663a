"""Tables of the command line fit the terminal: whole numbers and names, as many columns as there is room for."""

import pytest

from pipesched.cli import terminal

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
        terminal.print_table("", ROWS)
        return capsys.readouterr().out.splitlines()

    return at


@pytest.mark.parametrize("num_columns", [80, 44, 40])
def test_no_line_is_wider_than_the_terminal_and_no_cell_is_cut(printed, num_columns):
    lines = printed(num_columns)
    assert max(map(len, lines)) <= num_columns
    text = "\n".join(lines)
    assert "…" not in text
    assert all(cell in text for cell in ("interleaved", "27.27 %", "warmup", "transfer"))


def test_columns_for_which_there_is_no_room_are_named(printed):
    lines = printed(30)
    assert lines[-1] == "too wide for 30 columns: idle by cause"
    assert "warmup" not in "\n".join(lines)
    assert max(map(len, lines[:-1])) <= 30
