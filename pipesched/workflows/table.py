"""A table for people: ready-made cells, which a notebook shows as HTML and the command line draws."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipesched.schedules.common import printable
from pipesched.simulator.analysis import readable_bytes, readable_reason, readable_s, readable_share

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Table:
    """A table: rows of cells, with a title.

    Attributes:
        title: Title above the table; may be empty.
        rows: Every row has the columns of the first.
        caption: Lines below the table.
        legend: Meaning of columns whose name does not explain them.
    """

    title: str
    rows: tuple[Mapping[str, str], ...]
    caption: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)

    def lines(self, columns: Collection[str]) -> list[str]:
        """Return the lines below the table for the shown columns: their legend, and the caption."""
        meanings = "; ".join(f"{name}: {meaning}" for name, meaning in self.legend.items() if name in columns)
        return [text for text in (meanings, *self.caption.split("\n")) if text]

    def noted(self, notes: Iterable[str]) -> Table:
        """Return the table with notes below its caption."""
        return replace(self, caption="\n".join(filter(None, [self.caption, *notes])))

    def to_text(self) -> str:
        """Return the table as plain text, its columns below their names."""
        columns = list(self.rows[0]) if self.rows else []
        widths = {name: max(len(name), *(len(row[name]) for row in self.rows)) for name in columns}
        rows = [dict(zip(columns, columns, strict=True)), *self.rows] if columns else []
        lines = ("  ".join(row[name].ljust(widths[name]) for name in columns).rstrip() for row in rows)
        return "\n".join(filter(None, [self.title, *lines, *self.lines(columns)]))

    def to_html(self) -> str:
        """Return the table as HTML, with names escaped."""
        parts = [f"<p><b>{_text(self.title)}</b></p>"] if self.title else []
        if self.rows:
            head = "".join(f"<th>{_text(name)}</th>" for name in self.rows[0])
            body = "".join(
                "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row.values()) + "</tr>" for row in self.rows
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        lines = self.lines(self.rows[0] if self.rows else ())
        if lines:
            parts.append("<p>" + "<br>".join(map(_text, lines)) + "</p>")
        return "".join(parts)


class Result:
    """An answer of the library: a notebook shows its tables, with its notes below the first."""

    __slots__ = ()

    def table(self) -> Table:
        """Return the answer, formatted for people."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """Return all tables of the answer, formatted for people."""
        return [self.table()]

    def _repr_html_(self) -> str:
        first, *others = self.tables()
        notes: Iterable[str] = getattr(self, "notes", ())
        return "".join(table.to_html() for table in (first.noted(notes), *others))


def cell_text(name: str, value: Any) -> str:
    """Return a value for people, in the unit at the end of the name of its quantity; ``-`` for None."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case tuple():
            return ":".join(map(str, value))
    if name == "reason":
        return readable_reason(value)
    if name == "bandwidth_bytes_per_s":
        return f"{value / 1e9:.4g} GB/s"
    if name.endswith("_bytes"):
        return readable_bytes(value)
    if name.endswith(("_fraction", "utilization")):
        return readable_share(value)
    if not name.endswith("_per_s") and (name.endswith(("_s", "_s_per_microbatch")) or name.startswith("s_per_")):
        return readable_s(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def quantity_title(name: str) -> str:
    """Return the name of a quantity for people, without its unit."""
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def without_dull(
    rows: Iterable[Mapping[str, str]], usual: Mapping[str, str] = MappingProxyType({})
) -> tuple[Mapping[str, str], ...]:
    """Return rows without the columns in which each cell is ``-`` or the column's value in `usual`."""
    rows = tuple(rows)
    telling = [name for name in rows[0] if any(row[name] not in ("-", usual.get(name)) for row in rows)] if rows else []
    return tuple({name: row[name] for name in telling} for row in rows)


def with_equal_in_one(rows: Iterable[Mapping[str, str]], to: str = "-") -> tuple[Mapping[str, str], ...]:
    """Return rows named by their first column; neighbours with equal other cells are merged: ``0-63``."""
    folded: list[Mapping[str, str]] = []
    for _, equal in groupby(rows, key=lambda row: tuple(row.values())[1:]):
        first, *others = equal
        name, number = next(iter(first.items()))
        folded.append({**first, name: f"{number}{to}{others[-1][name]}"} if others else first)
    return tuple(folded)


def with_equal_devices(rows: Iterable[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
    """Return the rows of devices, merging rows that differ only in the device number.

    A merged row names its devices as a range, ``0-63``, or with a step, ``0, 4 .. 60``.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.values())[1:], []).append(row)
    folded: list[Mapping[str, str]] = []
    for equal in groups.values():
        name = next(iter(equal[0]))
        devices = [int(row[name]) for row in equal]
        steps = {after - before for before, after in pairwise(devices)}
        if len(steps) == 1 and len(devices) > 1 + (steps != {1}):
            first, second, last = devices[0], devices[1], devices[-1]
            folded.append({**equal[0], name: f"{first}-{last}" if steps == {1} else f"{first}, {second} .. {last}"})
        else:
            folded += equal
    return tuple(sorted(folded, key=lambda row: int(re.split("[-,]", next(iter(row.values())))[0])))


def with_nan(frame: pd.DataFrame, words: Collection[str]) -> pd.DataFrame:
    """Return a frame with NaN for missing numbers, also in columns without any number.

    Args:
        frame: Its columns may have None in them.
        words: Columns of text.
    """
    lacking = [name for name in frame if name not in words and frame[name].isna().any()]
    return frame.astype(
        {name: float for name in lacking if all(isinstance(v, int | float) for v in frame[name].dropna())}
    )


def _text(text: str) -> str:
    from html import escape

    return escape(printable(text))
