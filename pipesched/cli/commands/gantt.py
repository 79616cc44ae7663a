"""``pipesched gantt``: a picture of one or more Timelines."""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.key_values import time_s
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.simulation_options import SimulationOptions
from pipesched.cli.output.memory_lines import end_if_over
from pipesched.cli.output.output_files import check_outputs
from pipesched.cli.output.shown_timelines import read_shown
from pipesched.cli.terminal import print_coloured, print_json, print_lines, terminal_line
from pipesched.schedules.common import shown

if TYPE_CHECKING:
    from pipesched.simulator.views import FigureStyle

_MOST_COLUMNS = 10_000
"""Widest terminal whose columns are filled by default."""


@grouped
def gantt(
    schedule: ScheduleOptions,
    costs: CostOptions,
    files: Annotated[list[Path] | None, typer.Argument(help="Timelines (JSON); none: simulate the schedule.")] = None,
    out: Annotated[Path | None, out_option("Draw a picture, .png, .svg or .pdf, or a page to zoom in, .html.")] = None,
    has_memory: Annotated[
        bool, typer.Option("--memory", help="Draw the memory of the devices below, with --memory-limit; with --out.")
    ] = False,
    has_idle: Annotated[bool, typer.Option("--idle", help="Colour idle time by its causes; with --out.")] = False,
    since: Annotated[str, typer.Option("--from", help="Start of the axis, after the first work: 10ms.")] = "0",
    until: Annotated[str | None, typer.Option("--to", help="End of the axis (default: the end of the run).")] = None,
    columns: Annotated[
        int | None,
        typer.Option(help="Characters of a line, without --out (default: the width of the terminal).", min=20),
    ] = None,
    json: Json = False,
    title: Annotated[str, typer.Option(help="Title of the picture.")] = "",
    size: Annotated[
        str | None, typer.Option(help="Width x height of the picture in inches, as 7x3; with --out.")
    ] = None,
    font: Annotated[str | None, typer.Option(help="Font family of the picture, as serif; with --out.")] = None,
    font_size: Annotated[
        float | None, typer.Option(help="Size of most text in points (default: 10); with --out.")
    ] = None,
    simulation: SimulationOptions = SimulationOptions(),  # noqa: B008 -- frozen
) -> None:
    """Draw Timelines, one under another on one time axis (.png, .svg, .pdf, .html), or as text.

    Exits with 1 if the prediction for a schedule exceeds --memory-limit.
    """
    import json as standard_json

    from pipesched.schedules.formats import timeline_to_json
    from pipesched.simulator.views import GANTT_SUFFIXES, ChartOptions
    from pipesched.workflows.timelines import Gantt

    check_outputs((out, GANTT_SUFFIXES))
    looks = {"--memory": has_memory, "--idle": has_idle, "--size": size, "--font": font, "--font-size": font_size}
    option = next((option for option, value in looks.items() if value), None)
    if out is None and option is not None:
        raise InputError(f"{option}: got it without --out, expected a picture or page to draw it in; try --out x.png")
    until_s = None if until is None else time_s(until, "--to")
    options = ChartOptions(time_s(since, "--from"), until_s, has_idle, has_memory, _style(size, font, font_size))
    shown = read_shown(files, schedule, costs, simulation)
    picture = Gantt(shown.timelines, title, shown.details, options, (*shown.notes, *shown.doubts))
    if out is not None:
        picture.save(out)
    if json:
        timelines = [standard_json.loads(timeline_to_json(timeline)) for timeline in shown.timelines]
        print_json("gantt", {"timelines": timelines}, shown.doubts)
    elif out is None:
        width = columns or min(get_terminal_size((100, 24)).columns, _MOST_COLUMNS)
        print_coloured([*([terminal_line(title)] if title else []), picture.to_text(width, has_colour=True)])
        print_lines(picture.notes)
    end_if_over(shown.over)


def _style(size: str | None, font: str | None, font_size: float | None) -> FigureStyle:
    """Return the size and font of the picture.

    Raises:
        InputError: The size is no pair of numbers.
        SimulationError: A number is out of range, or the font does not exist.
    """
    from pipesched.simulator.views import FigureStyle

    try:
        width_in, height_in = (None, None) if size is None else map(float, size.lower().split("x"))
    except ValueError as error:
        raise InputError(f"--size: got {shown(size)}, expected width x height in inches; try 7x3") from error
    sized = {} if font_size is None else {"font_size": font_size}
    return FigureStyle(width_in, height_in, font, **sized)
