"""``pipesched replay``: the parts of the time of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import pipesched
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.simulation_options import SimulationOptions
from pipesched.cli.output.output_files import JSON, check_outputs, emit
from pipesched.cli.terminal import json_answer, print_json, print_result, simulating


@grouped
def replay(
    file: Annotated[Path, typer.Argument(help="Timeline of a run (JSON).")],
    costs: CostOptions = CostOptions(),  # noqa: B008 -- frozen
    gantt: Annotated[
        Path | None,
        typer.Option(help="Draw the prediction, or without costs the replay, over the run: .png, .svg, .pdf or .html."),
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the output of --json: .json.")] = None,
) -> None:
    """Simulate the lists of a run with its measured op times, and split its makespan into parts.

    The parts are the ops, the overhead of messages and posting, and the rest. Costs (--profile, ..) add a prediction of
    the same lists, whose error is split.
    """
    from pipesched.schedules import schedule_of
    from pipesched.schedules.formats import read_timeline
    from pipesched.simulator.views import GANTT_SUFFIXES, draw_gantt
    from pipesched.workflows.arguments import ScheduleSource

    check_outputs((gantt, GANTT_SUFFIXES), (out, JSON))
    measured = read_timeline(file)
    schedule, setup = schedule_of(measured), None
    if costs != CostOptions():
        setup = costs.setup(ScheduleSource(schedule), SimulationOptions())
    with simulating(schedule):
        result = pipesched.replay(measured, setup)
    said = result.table().noted(result.notes)
    if gantt is not None:
        caption = result.explanation.sentence
        draw_gantt([result.first, result.measured], gantt, caption=caption, notes=said.lines(()))
    if out is not None:
        emit(json_answer("replay", result.to_dict(), result.notes), out)
    if json:
        print_json("replay", result.to_dict(), result.notes)
    else:
        print_result(said)
