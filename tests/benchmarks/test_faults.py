"""A fast sample of what `benchmarks/faults.py` counts: nothing of it may be otherwise than promised."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def row(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return lambda name: importlib.import_module(f"fault_rows.{name}").ROW


def test_damaged_files_of_every_format_and_damaged_command_lines_are_answered_in_a_line(row):
    table = list(row("damaged_input").lines(34))
    assert "As promised: 48 of 48." in table, "\n".join(table)


def test_hostile_files_of_every_format_do_nothing(row):
    table = list(row("hostile_files").lines(2))
    attacks = [line.split("|") for line in table if line.startswith("| a pickle")]
    assert [cells[-2].strip() for cells in attacks] == ["0", "0"], "\n".join(table)
