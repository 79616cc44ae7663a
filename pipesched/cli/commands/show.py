"""``pipesched show``: the op lists of a schedule."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.output_files import CSV, JSON, check_outputs, emit
from pipesched.cli.terminal import complain
from pipesched.schedules.formats import suffix_of

if TYPE_CHECKING:
    from pipesched.schedules import Schedule


class ListFormat(StrEnum):
    """Formats of a written schedule."""

    GRID = "grid"
    JSON = "json"
    CSV = "csv"
    CSV_COMMS = "csv-comms"


_ANY = (".txt", *JSON, *CSV, "")
_SUFFIXES: dict[ListFormat | None, tuple[str, ...]] = {None: _ANY, ListFormat.GRID: _ANY, ListFormat.JSON: JSON}


@grouped
def show(
    schedule: ScheduleOptions,
    format: Annotated[  # noqa: A002 -- the option's name
        ListFormat | None,
        typer.Option(
            help="grid; our JSON; PyTorch's CSV: csv compute-only, csv-comms with communication. "
            "Default: by the suffix of --out, with a CSV in the dialect of the schedule; else the grid."
        ),
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the lists: .json or .csv; or the grid: .txt.")] = None,
) -> None:
    """Show the op lists: a grid for people, or a file for PyTorch or pipesched; warn if a file cannot run."""
    from pipesched.schedules.formats import to_json, write_csv, write_csv_comms
    from pipesched.schedules.lowering import lower_for_torch

    format = ListFormat.JSON if json else format  # noqa: A001
    check_outputs((out, _SUFFIXES.get(format, CSV)))
    loaded = schedule.load()
    match format or _format_of(out, loaded):
        case ListFormat.GRID:
            is_read = out is None and sys.stdout.isatty()
            emit(loaded.grid(get_terminal_size().columns if is_read else None), out)
        case ListFormat.JSON:
            emit(to_json(loaded), out)
        case ListFormat.CSV:
            emit(write_csv(loaded), out)
        case ListFormat.CSV_COMMS:
            emit(write_csv_comms(lower_for_torch(loaded)), out)
    if schedule.schedule_file is not None or loaded.origin is None:
        _warn(loaded, f"-f {schedule.schedule_file}" if schedule.schedule_file else f"-s {schedule.schedule} ...")


def _warn(schedule: Schedule, source: str) -> None:
    """Warn on stderr if lists of the user cannot run; they are still written, for correction."""
    from pipesched.schedules.check import find_faults

    findings = find_faults(schedule)
    if findings:
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        complain(f"warning: {source.split()[1]}: {findings[0]}{more}; see 'pipesched check {source}'")


def _format_of(out: Path | None, schedule: Schedule) -> ListFormat:
    match suffix_of(out) if out is not None else "":
        case ".json":
            return ListFormat.JSON
        case ".csv":
            from pipesched.schedules.formats import has_communication

            return ListFormat.CSV_COMMS if has_communication(schedule.ops) else ListFormat.CSV
        case _:
            return ListFormat.GRID
