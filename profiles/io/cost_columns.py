"""The columns of a cost table: accepted names, units, and valid cells."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from pipesched.profiles import BYTE_UNITS
from pipesched.schedules.common import guess, shown, written_number

BACKWARDS = ("backward_s", "backward_input_s", "backward_weight_s")
_NAMES = {
    "forward_s": ("forward", "fwd", "f"),
    "backward_s": ("backward", "bwd", "b"),
    "backward_input_s": ("backward_input", "bwd_input", "i"),
    "backward_weight_s": ("backward_weight", "bwd_weight", "w"),
    "recompute_s": ("recompute", "r"),
    "step_s": ("step",),
    "copy_s": ("copy",),
    "predict_s": ("predict",),
    "average_s": ("average",),
    "unshard_s": ("unshard",),
}
"""Accepted names for the seconds of an op."""
_UNITS = {"": 1, "_s": 1, "_ms": 10**3, "_us": 10**6}
"""Units per second, by the end of a column's name."""
_BYTES = ("output_bytes", "saved_bytes", "saved_for_weight_bytes", "weight_bytes", "optimizer_bytes")
_MAY_BE_EMPTY = (*BACKWARDS, "predict_s", "recompute_s", "saved_for_weight_bytes")
COST_COLUMNS = ("forward_s", *BACKWARDS, *(name for name in _NAMES if name not in ("forward_s", *BACKWARDS)), *_BYTES,
                "overlap")  # fmt: skip
"""The columns of a layer or a stage."""
_SHOWN_COLUMNS = 3
OTHER_NAMES = "also fwd, bwd or f, b, i, w, r, and _ms or _us in place of _s"
MAX_ROWS = 100_000


class Column(NamedTuple):
    """One column.

    Attributes:
        name: Field that the column stands for.
        written: Name of the column in the file.
        unit: Suffix of the heading with the unit, such as ``_ms``, or empty.
    """

    name: str
    written: str
    unit: str = ""

    @property
    def per_second(self) -> int:
        """Units per second."""
        return _UNITS[self.unit]


_SECONDS = {f"{word}{unit}": (name, unit) for name, words in _NAMES.items() for word in words for unit in _UNITS}


def column_of(written: str) -> Column:
    """Return the column with this heading, such as ``forward_s``, ``Fwd (ms)`` or ``b_us``; the name may be unknown."""
    plain = re.sub(r"[\s_()\[\]-]+", "_", written.replace("µ", "u").replace("μ", "u")).strip("_").lower()
    name, unit = _SECONDS.get(plain, (plain, ""))
    return Column(name, written, unit)


def header_faults(columns: Sequence[Column], known: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Return the faults in the columns of a table.

    Args:
        columns: The columns, in the order of the file.
        known: The accepted columns.
        needed: The required columns, besides a backward.
    """
    written = [column.written for column in columns]
    separator = next((mark for mark in (";", "\t") if len(columns) == 1 and mark in written[0]), None)
    if separator is not None:
        return [
            f"row 1: got {separator!r} between columns, expected ','; save the table with commas between columns and "
            "points in numbers"
        ]
    if not any(math.isnan(written_number(name)) for name in written):
        return [f"row 1: got numbers, expected the names of the columns; start with: {','.join(needed)},backward_s"]
    names = [column.name for column in columns]
    if not set(names) & set(known):
        first = ", ".join(map(shown, written[:_SHOWN_COLUMNS]))
        return [
            f"row 1: got columns {first}, expected names such as {', '.join(needed)}, "
            "backward_s; is it a table of costs?"
        ]
    for rows, other in (("stage", "layer"), ("layer", "stage")):
        if rows in known and other in names and rows not in names:
            return [
                f"row 1: got column {other}, expected a row per {rows}; rename the column, or give the table as "
                f"{other} costs"
            ]
    faults = _unknown_faults([column.written for column in columns if column.name not in known], known)
    for name in known:
        same = [column.written for column in columns if column.name == name]
        if len(same) > 1:
            also = "twice" if len(set(same)) == 1 else f"as {' and '.join(map(shown, same))}"
            faults.append(f"row 1: got column {name} {also}, expected once; remove one")
    faults += _unit_faults(columns)
    faults += [f"row 1: got no column {name}, expected this column; add it" for name in needed if name not in names]
    halves = [name for name in BACKWARDS[1:] if name in names]
    if "backward_s" not in names and len(halves) < 2:
        faults.append(
            "row 1: got no backward, expected column backward_s, or columns backward_input_s and backward_weight_s; "
            "add them"
        )
    elif len(halves) == 1:
        faults.append(
            f"row 1: got column {halves[0]} without the other half of the backward, expected both or neither; add the "
            "other half, or rename b to i if it is the backward for inputs (B in papers on zero bubbles)"
        )
    return faults


def _unknown_faults(written: Sequence[str], known: Sequence[str]) -> list[str]:
    if not written:
        return []
    names = ", ".join(map(shown, written[:_SHOWN_COLUMNS]))
    more = f" and {len(written) - _SHOWN_COLUMNS} more" if len(written) > _SHOWN_COLUMNS else ""
    got, them = ("column", "it") if len(written) == 1 else ("columns", "them")
    meant = guess(written[0].lower(), known) if len(written) == 1 else ""
    return [
        f"row 1: got {got} {names}{more}, {meant}expected only {', '.join(known)} ({OTHER_NAMES}); "
        f"rename or remove {them}"
    ]


def _unit_faults(columns: Sequence[Column]) -> list[str]:
    """Return a fault for each column of seconds without a unit, if another one is in ms or us."""
    other = next((column for column in columns if column.per_second > 1), None)
    if other is None:
        return []
    return [
        f"row 1: got column {shown(column.written)} without a unit, expected one as {shown(other.written)} has; "
        f"write {column.written}{other.unit}"
        for column in columns
        if column.name in _NAMES and not column.unit
    ]


def cell_limits(name: str) -> dict[str, Any]:
    """Return the limits of a cell of a column as JSON Schema, with seconds in s."""
    match name:
        case "layer":
            return {"type": "string"}
        case "stage":
            return {"type": "integer", "minimum": 0, "maximum": MAX_ROWS - 1}
        case "utilisation":
            return {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        case "overlap":
            return {"type": "number", "minimum": 0, "maximum": 1}
    is_whole = name in _BYTES
    kind, most = ("integer", {"maximum": 2**63 - 1}) if is_whole else ("number", {})
    return {"type": [kind, "null"] if name in _MAY_BE_EMPTY else kind, "minimum": 0, **most}


def read_cell(place: str, column: Column, cell: str, faults: list[str]) -> Any:
    """Return the value of `cell`, times in seconds; None for an empty cell. Add to `faults` if the cell is invalid."""
    if not cell and column.name in _MAY_BE_EMPTY:
        return None
    limits = cell_limits(column.name)
    if limits["type"] == "string":
        return cell
    if "integer" in limits["type"]:
        cell = _in_bytes(column, cell)
        if cell.isascii() and cell.isdigit() and len(cell) <= 19 and int(cell) <= limits["maximum"]:
            return int(cell)
        also = ", or a size as 16MiB" if column.name in _BYTES else ""
        faults.append(
            f"{place}: got {shown(cell)}, expected a whole number from 0 to {limits['maximum']}{also}; correct the cell"
        )
        return None
    value = written_number(cell) / column.per_second
    is_above = value > 0 if "exclusiveMinimum" in limits else value >= 0
    if is_above and value <= limits.get("maximum", sys.float_info.max):
        return value
    match column.name:
        case "utilisation":
            expected = "a share above 0 and at most 1"
        case "overlap":
            expected = "a share from 0 to 1"
        case _:
            unit = {1: "seconds", 10**3: "milliseconds", 10**6: "microseconds"}[column.per_second]
            expected = f"{unit}, finite and 0 or more"
    faults.append(f"{place}: got {shown(cell)}, expected {expected}; correct the cell")
    return None


def _in_bytes(column: Column, cell: str) -> str:
    """Return the bytes in a cell with a unit, such as ``16MiB``; return other cells unchanged."""
    size = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{0,19})?)\s*((?:[kKMGT]i?)?B)", cell)
    if size is None or column.name not in _BYTES:
        return cell
    return str(round(Fraction(size[1]) * BYTE_UNITS[size[2].lower()]))


def unitless(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the headings of the columns of seconds if none of them has a unit, else nothing."""
    seconds = [column for column in columns if column.name in _NAMES]
    return () if any(column.unit for column in seconds) else tuple(column.written for column in seconds)
