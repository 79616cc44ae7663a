"""``pipesched import``: a real run, from the traces of its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.output_files import TIMELINE, check_outputs, write_timeline
from pipesched.cli.terminal import print_json, print_result, progress_bar
from pipesched.workflows import timeline_notes


@grouped
def import_run(
    schedule: ScheduleOptions,
    files: Annotated[
        list[Path], typer.Argument(help="Chrome traces (.json, .json.gz): one per rank, or one of all ranks.")
    ],
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            help="Names of passes: a regular expression with groups phase, stage, microbatch (default: known names)."
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="ProfilerStep to read, or the k-th step from 0 (default: the last whole).", min=0)
    ] = None,
    same_clock: Annotated[
        bool, typer.Option("--same-clock", help="All ranks ran on one host: do not align their clocks.")
    ] = False,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the measured Timeline: .json, .csv, .parquet or .html.")] = None,
) -> None:
    """Measure a real run from its traces: bubble, idle time by cause, and a Timeline (--out).

    Other commands read the Timeline: gantt, compare, trace, profile --from. A schedule is needed if the names of ranges
    do not identify the ops, as with several stages on a rank.
    """
    from pipesched.workflows.timelines import import_traces

    check_outputs((out, TIMELINE))
    lists = None if schedule == ScheduleOptions() else schedule.load()
    with progress_bar("reading traces") as tick:
        result = import_traces(
            files, patterns=pattern or (), schedule=lists, step=step, has_one_clock=same_clock, progress=tick
        )
    notes = timeline_notes(result.timeline)
    said = result.table().noted(notes)
    if out is not None:
        write_timeline(result.timeline, out, notes=said.lines(()))
    if json:
        print_json("import", result.to_dict(), [*result.notes, *notes])
    else:
        print_result(said)
