"""``pipesched show`` and ``list``: the op lists of a schedule, and every schedule of the catalogue."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.options.option_groups import OUTPUT, Json, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.output_files import CSV, JSON, check_outputs, emit
from pipesched.cli.terminal import complain, print_json, print_table
from pipesched.schedules import builders, check, formats, lowering
from pipesched.schedules.formats import suffix_of
from pipesched.workflows import Table

if TYPE_CHECKING:
    from pipesched.schedules import Schedule
    from pipesched.schedules.builders import Entry


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
    *,
    schedule: ScheduleOptions,
    format: Annotated[  # noqa: A002 -- the option's name
        ListFormat | None,
        typer.Option(
            rich_help_panel=OUTPUT,
            help=(
                "grid, json (ours), or a CSV of PyTorch: csv without, csv-comms with communication (default: by the "
                "suffix of --out, with a CSV in the dialect of the schedule; else grid)."
            ),
        ),
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the lists: .json or .csv; or the grid: .txt")] = None,
) -> None:
    """Show the op lists: a grid for people, or a file for PyTorch or pipesched; warn if a file cannot run."""
    format = ListFormat.JSON if json else format  # noqa: A001
    check_outputs((out, _SUFFIXES.get(format, CSV)))
    loaded = schedule.load()
    match format or _format_of(out, loaded):
        case ListFormat.GRID:
            is_read = out is None and sys.stdout.isatty()
            emit(loaded.grid(get_terminal_size().columns if is_read else None), out)
        case ListFormat.JSON:
            emit(formats.to_json(loaded), out)
        case ListFormat.CSV:
            emit(formats.write_csv(loaded), out)
        case ListFormat.CSV_COMMS:
            emit(formats.write_csv_comms(lowering.lower_for_torch(loaded)), out)
    if schedule.schedule_file is not None or loaded.origin is None:
        _warn(loaded, f"-f {schedule.schedule_file}" if schedule.schedule_file else f"-s {schedule.schedule} ...")


def _warn(schedule: Schedule, source: str) -> None:
    """Warn on stderr if lists of the user cannot run; they are still written, for correction."""
    findings = check.find_faults(schedule)
    if findings:
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        complain(f"warning: {source.split()[1]}: {findings[0]}{more}; see 'pipesched check {source}'")


def _format_of(out: Path | None, schedule: Schedule) -> ListFormat:
    match suffix_of(out) if out is not None else "":
        case ".json":
            return ListFormat.JSON
        case ".csv":
            return ListFormat.CSV_COMMS if formats.has_communication(schedule.ops) else ListFormat.CSV
        case _:
            return ListFormat.GRID


@grouped
def list_schedules(json: Json = False) -> None:
    """List the schedules, their other names and their parameters; names are case-insensitive."""
    entries = builders.CATALOGUE.values()
    if json:
        print_json(
            "list",
            {
                "schedules": [
                    {
                        "name": entry.name,
                        "text": entry.text,
                        "source": entry.source,
                        "is_asynchronous": entry.traits.is_asynchronous,
                        "averages": entry.traits.averages,
                        "takes_chunks": entry.traits.takes_chunks,
                        "chunks": None if entry.traits.takes_chunks else entry.chunks_with(None, {}),
                        "aliases": list(entry.aliases),
                        "parameters": [
                            {"name": parameter.name, "default": parameter.default, "text": parameter.text}
                            for parameter in entry.parameters
                        ],
                    }
                    for entry in entries
                ]
            },
        )
        return
    rows = tuple(
        {
            "name": entry.name,
            "what": entry.text + _options(entry),
            "flush": "no" if entry.traits.is_asynchronous else "yes",
            "source": entry.source,
            "also": ", ".join(entry.aliases),
        }
        for entry in entries
    )
    print_table(Table("Schedules", rows, "in brackets: options beside -p and -m"), most_columns=3)


def _options(entry: Entry) -> str:
    """Return the options of a schedule beside its counts, in brackets, or an empty text."""
    options = ["-v"] if entry.traits.takes_chunks else []
    for parameter in entry.parameters:
        default = ".." if parameter.default is None else parameter.default  # it depends on the counts
        options.append(f"--set {parameter.name}={default}")
    return f" [{' '.join(options)}]" if options else ""
