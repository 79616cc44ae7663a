"""The map of the code and the decision records name files that exist, and the index lists every record."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
RECORDS = sorted(DECISIONS.glob("0*.md"))
LONGEST = 40
"""Most lines of a record."""
PARTS = ("Question.", "Decision.", "Why.", "Cost.", "Reopen if")

PATH = re.compile(r"`((?:\w+/)+[\w.]*)`")
"""A path in backticks, from the top of the repository or from `pipesched/`."""
LINK = re.compile(r"\]\(([^)#]+\.md)\)")


@pytest.mark.parametrize("page", [ROOT / "docs" / "design.md", *RECORDS], ids=lambda page: page.stem)
def test_named_files_exist(page):
    text = page.read_text(encoding="utf-8")
    assert [
        name for name in PATH.findall(text) if not any((top / name).exists() for top in (ROOT, ROOT / "pipesched"))
    ] == []
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_its_number_and_all_parts(record):
    text = record.read_text(encoding="utf-8")
    assert text.startswith(f"# {int(record.name[:4])}. ")
    assert re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE) == list(PARTS)
    assert len(text.splitlines()) <= LONGEST


def test_the_index_lists_every_record_once():
    rows = re.findall(r"^\| \[(\d+)\]\((\S+)\) \|", (DECISIONS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(str(number), record.name) for number, record in enumerate(RECORDS, 1)]
    assert len(RECORDS) > 20
