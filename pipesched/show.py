"""``pipesched show``: the op lists of a schedule."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pipesched.files import JSON, check_outputs, emit
from pipesched.options import Out, ScheduleOptions, grouped


class Format(StrEnum):
    """How to write a schedule."""

    GRID = "grid"
    JSON = "json"
    CSV = "csv"
    CSV_COMMS = "csv-comms"


@grouped
def show(
    schedule: ScheduleOptions,
    format: Annotated[  # noqa: A002 -- the option's name
        Format, typer.Option(help="grid; our JSON; PyTorch's CSV: csv compute-only, csv-comms with communication.")
    ] = Format.GRID,
    out: Out = None,
) -> None:
    """Show the op lists: a grid for people, or a file for PyTorch and for us."""
    from schedules.formats.schedule_json import to_json
    from schedules.formats.torch_csv import write_csv, write_csv_comms
    from schedules.lower import lower

    check_outputs((out, {Format.GRID: (), Format.JSON: JSON}.get(format, (".csv",))))
    loaded = schedule.load()
    match format:
        case Format.GRID:
            emit(str(loaded), out)
        case Format.JSON:
            emit(to_json(loaded), out)
        case Format.CSV:
            emit(write_csv(loaded), out)
        case Format.CSV_COMMS:
            emit(write_csv_comms(lower(loaded)), out)
