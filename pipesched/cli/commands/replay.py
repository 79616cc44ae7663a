"""``pipesched replay`` and ``import``: the parts of the time of a run, and a run from the traces of its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import pipesched
from pipesched.cli.errors import read_from
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.machine_options import SimulationOptions
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.output_files import JSON, TIMELINE, check_outputs, print_answer, write_timeline
from pipesched.cli.terminal import progress_bar, simulating
from pipesched.questions import ImportSettings
from pipesched.schedules import formats
from pipesched.schedules.common import values_of
from pipesched.simulator import views
from pipesched.simulator.views import GANTT_SUFFIXES
from pipesched.workflows import arguments, timeline_notes, timelines


@grouped
def replay(
    *,
    file: Annotated[Path, typer.Argument(help="Timeline of a run (JSON).")],
    costs: CostOptions,
    gantt: Annotated[
        Path | None,
        file_option("Draw the prediction (without costs: the replay) above the run", GANTT_SUFFIXES),
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the output of --json", JSON)] = None,
) -> None:
    """Simulate the lists of a run with its measured op times, and split its makespan into parts.

    The parts are the ops, the overhead of messages and posting, and the rest. Costs (--profile, ..) add a prediction of
    the same lists, whose error is split.
    """
    from pipesched.schedules import schedule_of

    check_outputs((gantt, GANTT_SUFFIXES), (out, JSON))
    measured = formats.read_timeline(file)
    read_from(file, measured.name)
    schedule, setup = schedule_of(measured), None
    if costs != CostOptions():
        setup = costs.setup(arguments.ScheduleSource(schedule), SimulationOptions())
    with simulating(schedule):
        result = pipesched.replay(measured, setup)
    said = result.table().noted(result.notes)
    if gantt is not None:
        caption = result.explanation.sentence
        views.draw_gantt([result.first, result.measured], gantt, caption=caption, notes=said.lines(()))
    print_answer("replay", result.to_dict(), result.notes, [said], is_json=json, out=out)


@grouped
def import_run(
    *,
    schedule: ScheduleOptions,
    files: Annotated[
        list[Path], typer.Argument(help="Chrome traces (.json, .json.gz): one per rank, or one of all ranks.")
    ],
    asked: ImportSettings,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the measured Timeline", TIMELINE)] = None,
) -> None:
    """Measure a real run from its traces: bubble, idle time by cause, and a Timeline (--out).

    Other commands read the Timeline: gantt, compare, trace, profile --from. A schedule is needed if the names of ranges
    do not identify the ops, as with several stages on a rank.
    """
    check_outputs((out, TIMELINE))
    lists = None if schedule == ScheduleOptions() else schedule.load()
    with progress_bar("reading traces") as tick:
        result = timelines.import_traces(files, schedule=lists, **values_of(asked), progress=tick)
    notes = timeline_notes(result.timeline)
    said = result.table().noted(notes)
    if out is not None:
        write_timeline(result.timeline, out, notes=said.lines(()))
    print_answer("import", result.to_dict(), [*result.notes, *notes], [said], is_json=json)
