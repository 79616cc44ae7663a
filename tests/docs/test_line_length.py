"""Prose wraps: no line of it is longer than 118 characters; code, tables and pictures may be."""

from pathlib import Path

import pytest

from docs.make_schedules import LINE_LENGTH

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def prose(text):
    """Yield the lines between fences that are neither indented code nor a row of a table."""
    is_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("    ", "|", "![")):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_prose_is_wrapped(page):
    lines = list(prose(page.read_text(encoding="utf-8")))
    assert any(lines)
    assert [line for line in lines if len(line) > LINE_LENGTH] == []
