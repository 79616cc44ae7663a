"""Stage costs from a CSV file that a person wrote.

One row per stage, in any order, under a header of these columns::

    stage, forward_s, backward_s | backward_input_s, backward_weight_s,
    output_bytes, saved_bytes, saved_for_weight_bytes, weight_bytes, optimizer_bytes, step_s, copy_s, predict_s,
    average_s, recompute_s, utilisation, overlap

The backward is given whole, or split, or both. Byte columns, step_s, copy_s and average_s that are absent are 0,
utilisation is 1, and absent or left empty saved_for_weight_bytes is as saved_bytes, predict_s as copy_s, recompute_s as
forward_s. overlap is one number for all stages: 0 if absent, else the same in every row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.profiles.io.faults import require_no_faults
from pipesched.profiles.io.loading import read_profile_text
from pipesched.schedules import shown

_BACKWARDS = ("backward_s", "backward_input_s", "backward_weight_s")
_SECONDS = ("forward_s", *_BACKWARDS, "step_s", "copy_s", "predict_s", "average_s", "recompute_s")
_BYTES = ("output_bytes", "saved_bytes", "saved_for_weight_bytes", "weight_bytes", "optimizer_bytes")
_MAY_BE_EMPTY = (*_BACKWARDS, "predict_s", "recompute_s", "saved_for_weight_bytes")
_COLUMNS = ("stage", *_SECONDS, *_BYTES, "utilisation", "overlap")
_MAX_STAGES = 100_000


def load_stage_costs(path: str | Path) -> StageCosts:
    """Read stage costs.

    Raises:
        ProfileError: The file cannot be read or is not of this form; names row (the header is row 1) and column.
    """
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
        raise ProfileError(
            f"{file}: got {len(rows)} rows, expected a header and a row per stage; "
            "start with: stage,forward_s,backward_s"
        )
    header = rows[0][1]
    require_no_faults(file, _header_faults(header))
    faults: list[str] = []
    stages: dict[int, StageCost] = {}
    overlaps: list[float] = []
    for number, row in rows[1:]:
        _read_row(number, header, row, stages, overlaps, faults)
    if not faults and sorted(stages) != list(range(len(stages))):
        missing = next(stage for stage in range(len(stages)) if stage not in stages)
        faults.append(
            f"column stage: got no stage {missing} but stage {max(stages)}, expected 0 to {len(stages) - 1}; "
            "number the stages from 0 without gaps"
        )
    require_no_faults(file, faults)
    ordered = tuple(stages[stage] for stage in range(len(stages)))
    return StageCosts(ordered, origin=file, overlap=overlaps[0] if overlaps else 0.0)


def _header_faults(header: Sequence[str]) -> list[str]:
    known = ", ".join(_COLUMNS)
    faults = [
        f"row 1: got column {shown(name)}, expected only {known}; rename or remove it"
        for name in header
        if name not in _COLUMNS
    ]
    faults += [
        f"row 1: got column {name} twice, expected once; remove one" for name in _COLUMNS if header.count(name) > 1
    ]
    faults += [
        f"row 1: got no column {name}, expected it; add it" for name in ("stage", "forward_s") if name not in header
    ]
    if "backward_s" not in header and not {"backward_input_s", "backward_weight_s"} <= set(header):
        faults.append(
            "row 1: got no backward, expected column backward_s, or backward_input_s and backward_weight_s; add it"
        )
    return faults


def _read_row(
    number: int,
    header: Sequence[str],
    row: Sequence[str],
    stages: dict[int, StageCost],
    overlaps: list[float],
    faults: list[str],
) -> None:
    """Add the stage in `row` to `stages` and its overlap to `overlaps`, or what is wrong with it to `faults`."""
    if len(row) != len(header):
        faults.append(f"row {number}: got {len(row)} cells, expected {len(header)} as in the header; check the commas")
        return
    before = len(faults)
    values = {
        name: _read_cell(f"row {number}, column {name}", name, cell, faults)
        for name, cell in zip(header, row, strict=True)
    }
    if len(faults) > before:
        return
    split = values.get("backward_input_s") is not None and values.get("backward_weight_s") is not None
    if values.get("backward_s") is None and not split:
        faults.append(
            f"row {number}: got no backward, expected backward_s, or backward_input_s and backward_weight_s; fill it in"
        )
        return
    stage = values.pop("stage")
    if stage in stages:
        faults.append(f"row {number}, column stage: got stage {stage} again, expected each once; remove a row")
        return
    if "overlap" in values:
        overlaps.append(values.pop("overlap"))
        if overlaps[-1] != overlaps[0]:
            faults.append(
                f"row {number}, column overlap: got {overlaps[-1]:g}, expected {overlaps[0]:g} as above; "
                "give the same in every row"
            )
    stages[stage] = StageCost(**values)


def _read_cell(place: str, name: str, cell: str, faults: list[str]) -> Any:
    """Return the number in `cell`; None with a fault added, or where it may be left empty."""
    if not cell and name in _MAY_BE_EMPTY:
        return None
    if name == "stage" or name in _BYTES:
        limit = _MAX_STAGES if name == "stage" else 2**63
        if cell.isascii() and cell.isdigit() and len(cell) <= 19 and int(cell) < limit:
            return int(cell)
        faults.append(f"{place}: got {shown(cell)}, expected a whole number from 0 to {limit - 1}; correct the cell")
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    match name:
        case "utilisation":
            fits, expected = 0 < value <= 1, "a share above 0 and at most 1"
        case "overlap":
            fits, expected = 0 <= value <= 1, "a share from 0 to 1"
        case _:
            fits, expected = 0 <= value < math.inf, "seconds, finite and 0 or more"
    if fits:
        return value
    faults.append(f"{place}: got {shown(cell)}, expected {expected}; correct the cell")
    return None
