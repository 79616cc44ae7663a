"""Costs of stages, or of layers, from a CSV file that a user wrote.

One row per stage, in any order, or per layer, from the first to the last, under a header of these columns::

    stage | layer, forward_s, backward_s | backward_input_s, backward_weight_s,
    output_bytes, saved_bytes, saved_for_weight_bytes, weight_bytes, optimizer_bytes, step_s, copy_s, predict_s,
    average_s, unshard_s, recompute_s, utilisation, overlap

The backward is given whole, or split, or both. Missing columns have defaults. Byte columns, step_s, copy_s, average_s
and unshard_s are 0, and utilisation is 1. Missing or empty saved_for_weight_bytes is saved_bytes, predict_s is
copy_s, recompute_s is forward_s. overlap is one number for all rows: 0 if absent, else the same in every row. layer,
a name, is optional; utilisation is for stages only. Bytes may have a unit, such as 16MiB. Other accepted names for
columns of seconds are in `profiles.io.cost_columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerCosts, StageCost, StageCosts
from pipesched.profiles.io.cost_columns import (
    BACKWARDS,
    COST_COLUMNS,
    Column,
    column_of,
    header_faults,
    read_cell,
    unitless,
)
from pipesched.profiles.io.faults import require_no_faults
from pipesched.profiles.io.loading import read_profile_text

_MAX_LAYERS = 2_000
"""Limit of layers, because a balanced partition visits every pair of layers."""

_MAX_DIGITS = 19
"""Longest number of a layer [digits]; a longer name is text."""


class _Row(NamedTuple):
    number: int
    values: dict[str, Any]


class _Table(NamedTuple):
    """A file, and its rows of cells with their numbers, header first."""

    file: str
    columns: list[Column]
    rows: list[tuple[int, list[str]]]


def load_stage_costs(path: str | Path) -> StageCosts:
    """Read stage costs.

    Raises:
        ProfileError: The file cannot be read or is invalid; the message names row (the header is row 1) and column.
    """
    return _stage_costs(_read(path, "stage", "stage,forward_s,backward_s"))


def load_layer_costs(path: str | Path) -> LayerCosts:
    """Read layer costs.

    Raises:
        ProfileError: The file cannot be read or is invalid; the message names row (the header is row 1) and column.
    """
    return _layer_costs(_read(path, "layer", "forward_s,backward_s"))


def load_cost_table(path: str | Path) -> StageCosts | LayerCosts:
    """Read stage costs if the table has a column ``stage``, else layer costs.

    Raises:
        ProfileError: The file cannot be read or is invalid; the message names row (the header is row 1) and column.
    """
    table = _read(path, "stage or layer", "forward_s,backward_s")
    return _stage_costs(table) if any(column.name == "stage" for column in table.columns) else _layer_costs(table)


def _read(path: str | Path, what: str, start: str) -> _Table:
    import csv

    file = str(path)
    reader = csv.reader(read_profile_text(path).splitlines(), strict=True, skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise ProfileError(
            f"{file}: row {reader.line_num}: got {error}, expected comma-separated values; check the quotes"
        ) from error
    rows = [(number, row) for number, row in rows if any(row)]
    if len(rows) < 2:
        raise ProfileError(f"{file}: got {len(rows)} rows, expected a header and a row per {what}; start with: {start}")
    return _Table(file, [column_of(cell) for cell in rows[0][1]], rows[1:])


def _stage_costs(table: _Table) -> StageCosts:
    known = ("stage", *COST_COLUMNS, "utilisation")
    rows, faults = _rows(table, known, ("stage", "forward_s"))
    overlap = _overlap(rows, faults)
    stages: dict[int, StageCost] = {}
    for number, values in rows:
        stage = values.pop("stage")
        if stage in stages:
            faults.append(
                f"row {number}, column stage: got stage {stage} again, expected each stage once; remove a row"
            )
        stages[stage] = StageCost(**values)
    if not faults and sorted(stages) != list(range(len(stages))):
        missing = next(stage for stage in range(len(stages)) if stage not in stages)
        faults.append(
            f"column stage: got no stage {missing} but stage {max(stages)}, expected 0 to {len(stages) - 1}; "
            "number the stages from 0 without gaps"
        )
    require_no_faults(table.file, faults)
    in_order = tuple(stages[stage] for stage in range(len(stages)))
    return StageCosts(in_order, origin=table.file, overlap=overlap, unitless=unitless(table.columns))


def _layer_costs(table: _Table) -> LayerCosts:
    if len(table.rows) > _MAX_LAYERS:
        raise ProfileError(
            f"{table.file}: got {len(table.rows)} layers, expected at most {_MAX_LAYERS}; merge neighbouring layers"
        )
    rows, faults = _rows(table, ("layer", *COST_COLUMNS), ("forward_s",))
    overlap = _overlap(rows, faults)
    names = [(number, values.pop("layer", "")) for number, values in rows]
    are_numbers = all(name.isdecimal() and len(name) <= _MAX_DIGITS for _, name in names)
    if are_numbers:
        faults += [
            f"row {number}, column layer: got {name} after {before}, expected rising numbers, as a stage has "
            "neighbouring rows; sort the rows"
            for (_, before), (number, name) in pairwise(names)
            if int(name) <= int(before)
        ]
    require_no_faults(table.file, faults)
    layers = tuple(StageCost(**values) for _, values in rows)
    said = () if are_numbers else tuple(name[:200] or "layer" for _, name in names)
    return LayerCosts(layers, origin=table.file, overlap=overlap, unitless=unitless(table.columns), names=said)


def _rows(table: _Table, known: Sequence[str], needed: Sequence[str]) -> tuple[list[_Row], list[str]]:
    """Return the valid rows by field name, and the faults of the other rows.

    Raises:
        ProfileError: The header is wrong.
    """
    require_no_faults(table.file, header_faults(table.columns, known, needed))
    faults: list[str] = []
    rows = [_row(number, table.columns, cells, faults) for number, cells in table.rows]
    return [row for row in rows if row is not None], faults


def _row(number: int, columns: Sequence[Column], cells: Sequence[str], faults: list[str]) -> _Row | None:
    """Return the values of a row; if it is invalid, add its faults to `faults` and return None."""
    if len(cells) != len(columns):
        faults.append(
            f"row {number}: got {len(cells)} cells, expected {len(columns)} as in the header; check the commas"
        )
        return None
    before = len(faults)
    values = {
        column.name: read_cell(f"row {number}, column {column.written}", column, cell, faults)
        for column, cell in zip(columns, cells, strict=True)
    }
    whole, *halves = (values.get(name) for name in BACKWARDS)
    if len(faults) == before and whole is None and None in halves:
        faults.append(
            f"row {number}: got no backward, expected backward_s, or backward_input_s and backward_weight_s; fill in "
            "the cells"
        )
    return _Row(number, values) if len(faults) == before else None


def _overlap(rows: Sequence[_Row], faults: list[str]) -> float:
    """Remove the overlap from the rows, and return it; add to `faults` if the rows differ."""
    overlaps = [(number, values.pop("overlap", 0.0)) for number, values in rows]
    first = overlaps[0][1] if overlaps else 0.0
    faults += [
        f"row {number}, column overlap: got {overlap:g}, expected {first:g} as in the rows above; give the same in "
        "every row"
        for number, overlap in overlaps
        if overlap != first
    ]
    return float(first)
