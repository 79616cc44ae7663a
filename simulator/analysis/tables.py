"""Rows of plain data as text: CSV and JSON for programs, Markdown for people."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pipesched.schedules.common import printable

CellValue: TypeAlias = str | int | float | None
"""The value of a cell of a table, or None if unknown."""


def to_csv(rows: Sequence[dict[str, CellValue]]) -> str:
    """Return rows as CSV, numbers in full; a cell is empty where nothing is known."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=_columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_markdown(rows: Sequence[dict[str, CellValue]]) -> str:
    """Return rows as a Markdown table for people: four digits of a fraction, columns aligned."""
    columns = _columns(rows)
    cells = [[*map(_literal, columns)], *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(3, *(len(line[index]) for line in cells)) for index in range(len(columns))]
    numeric = [all(not isinstance(row.get(column), str) for row in rows) for column in columns]
    rule = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    lines = []
    for line in (cells[0], rule, *cells[1:]):
        aligned = zip(line, widths, numeric, strict=True)
        lines.append(
            "| " + " | ".join(c.rjust(width) if right else c.ljust(width) for c, width, right in aligned) + " |"
        )
    return "\n".join(lines) + "\n"


TABLE_FORMATS: dict[str, Callable[[Sequence[dict[str, CellValue]]], str]] = {
    ".md": to_markdown,
    ".csv": to_csv,
    ".json": lambda rows: json.dumps(rows, indent=2, allow_nan=False),
}
"""The function from rows to text, by the suffix of a file."""
FORMATS_FOR_PEOPLE = (".md",)
"""Suffixes of formats whose columns may have other names than the data."""


def _columns(rows: Sequence[dict[str, CellValue]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _cell(value: CellValue) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return _literal(str(value))


def _literal(text: str) -> str:
    """Escape `text` so that it cannot end a cell, and does not become emphasis, code or HTML; links remain."""
    return re.sub(r"[\\|*<`]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", printable(text))
