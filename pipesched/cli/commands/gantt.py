"""``pipesched gantt`` and ``trace``: one or more Timelines as a picture, or for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import EstimatedCostOptions
from pipesched.cli.options.machine_options import SimulationOptions
from pipesched.cli.options.option_groups import OUTPUT, Json, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.notes import doubts_of_prediction, end_if_over, limit_lines
from pipesched.cli.output.output_files import JSON, check_outputs, emit
from pipesched.cli.terminal import print_coloured, print_json, print_lines, simulating, terminal_line
from pipesched.schedules import formats
from pipesched.schedules.common import shown
from pipesched.simulator.views import GANTT_SUFFIXES, ChartOptions

if TYPE_CHECKING:
    from pipesched.schedules import Timeline
    from pipesched.simulator.memory import OverCapacity
    from pipesched.simulator.views import RunDetails

_MOST_COLUMNS = 10_000
"""Widest terminal whose columns are filled by default."""


@grouped
def gantt(
    *,
    schedule: ScheduleOptions,
    costs: EstimatedCostOptions,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Timelines (JSON) (default: simulate the schedule).")
    ] = None,
    out: Annotated[Path | None, out_option("Draw a picture, or a page to zoom in", GANTT_SUFFIXES)] = None,
    chart: ChartOptions,
    columns: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=OUTPUT,
            help="Characters per line of the printed chart (default: the width of the terminal).",
            min=20,
        ),
    ] = None,
    json: Json = False,
    title: Annotated[str, typer.Option(rich_help_panel=OUTPUT, help="Title of the picture.")] = "",
    size: Annotated[
        str | None,
        typer.Option(rich_help_panel=OUTPUT, help="Width x height of the picture of --out in inches, as 7x3."),
    ] = None,
    simulation: SimulationOptions,
) -> None:
    """Draw Timelines, one under another on one time axis (.png, .svg, .pdf, .html), or as text.

    Exits with 1 if the prediction for a schedule exceeds --memory-limit.
    """
    import json as standard_json

    from pipesched.workflows.timelines import Gantt

    check_outputs((out, GANTT_SUFFIXES))
    style = chart.style
    drawn = {"--memory": chart.has_memory, "--idle": chart.has_idle, "--size": size}
    looks = {**drawn, "--font": style.font, "--font-size": style.font_size != ChartOptions().style.font_size}
    option = next((option for option, value in looks.items() if value), None)
    if out is None and option is not None:
        raise InputError(
            f"{option}: got this option without --out, expected the name of a picture or page; try --out x.png"
        )
    shown = read_shown(files, schedule, costs, simulation)
    picture = Gantt(shown.timelines, title, shown.details, _sized(chart, size), (*shown.notes, *shown.doubts))
    if out is not None:
        picture.save(out)
    if json:
        timelines = [standard_json.loads(formats.timeline_to_json(timeline)) for timeline in shown.timelines]
        print_json("gantt", {"timelines": timelines}, shown.doubts)
    elif out is None:
        width = columns or min(get_terminal_size((100, 24)).columns, _MOST_COLUMNS)
        print_coloured([*([terminal_line(title)] if title else []), picture.to_text(width, has_colour=True)])
        print_lines(picture.notes)
    end_if_over(shown.over)


def _sized(chart: ChartOptions, size: str | None) -> ChartOptions:
    """Return the options of a chart with a size as ``7x3`` [inches], if there is one.

    Raises:
        InputError: The size is no pair of numbers.
        SimulationError: A number is out of range.
    """
    if size is None:
        return chart
    try:
        width_in, height_in = map(float, size.lower().split("x"))
    except ValueError as error:
        raise InputError(f"--size: got {shown(size)}, expected width x height in inches; try 7x3") from error
    return replace(chart, style=replace(chart.style, width_in=width_in, height_in=height_in))


@grouped
def trace(
    *,
    schedule: ScheduleOptions,
    costs: EstimatedCostOptions,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Timelines (JSON) (default: simulate the schedule).")
    ] = None,
    out: Annotated[Path | None, out_option("Write the trace", JSON)] = None,
    simulation: SimulationOptions,
) -> None:
    """Write a trace that ui.perfetto.dev opens: lanes per rank, arrows for messages, memory as counters.

    Exits with 1 if the prediction for a schedule exceeds --memory-limit.
    """
    from pipesched.workflows.timelines import Trace

    check_outputs((out, JSON))
    shown = read_shown(files, schedule, costs, simulation)
    emit(Trace(shown.timelines).to_json(), out)
    end_if_over(shown.over)


@dataclass(frozen=True, slots=True)
class Shown:
    """The timelines of a picture or trace.

    Attributes:
        timelines: At least one.
        details: Further facts on each for a page; empty: none.
        notes: Lines on the costs and the memory limit of a prediction.
        doubts: Cautions about a prediction.
        over: The excess of a prediction over `--memory-limit`, or None.
    """

    timelines: tuple[Timeline, ...]
    details: tuple[RunDetails, ...] = ()
    notes: Sequence[str] = ()
    doubts: Sequence[str] = ()
    over: OverCapacity | None = None


def read_shown(
    files: Sequence[Path] | None, schedule: ScheduleOptions, costs: EstimatedCostOptions, simulation: SimulationOptions
) -> Shown:
    """Return the Timelines in `files`; without files, the prediction for the schedule.

    Raises:
        InputError: There are files, and options of a simulation.
        ScheduleError: A file is no Timeline, or the schedule does not exist.
    """
    if files:
        require_no_simulation(files[0], schedule, costs, simulation)
        for file in files:
            if formats.suffix_of(file) == ".csv":
                raise InputError(
                    f"{file}: got a table, expected a Timeline (.json); if it is a schedule, try -f {file}"
                )
        return Shown(tuple(formats.read_timeline(path) for path in files))
    from pipesched.workflows.simulating import predict_source

    source = schedule.source()
    setup = costs.setup(source, simulation)
    with simulating(source.schedule):
        prediction = predict_source(source, setup)
    over = None if costs.machines.memory_limit is None else prediction.over
    notes = [*limit_lines(costs.machines, prediction), *costs.shares(source.schedule)]
    doubts = doubts_of_prediction(prediction, costs.machines)
    return Shown((prediction.timeline,), (prediction.details,), notes, doubts, over)


def require_no_simulation(
    file: Path, schedule: ScheduleOptions, costs: EstimatedCostOptions, simulation: SimulationOptions
) -> None:
    """Refuse options of a simulation beside the file of a Timeline.

    Raises:
        InputError: Such an option is given.
    """
    if schedule != ScheduleOptions() or costs != costs.__class__():
        raise InputError(
            f"{file}: got options of a schedule or its costs too, expected a Timeline or these options; leave one out"
        )
    if simulation != SimulationOptions():
        raise InputError(
            f"{file}: got options of a simulation too, such as --protocol or --jitter, expected a Timeline or a "
            "schedule to simulate; leave these options out"
        )
