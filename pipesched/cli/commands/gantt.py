"""``pipesched gantt``: a picture of one or more Timelines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesched.cli.options.common_options import out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.simulation_options import SimulationOptions
from pipesched.cli.output.memory_lines import end_if_over
from pipesched.cli.output.output_files import check_outputs
from pipesched.cli.output.shown_timelines import read_shown
from pipesched.cli.terminal import terminal_line


@grouped
def gantt(
    schedule: ScheduleOptions,
    costs: CostOptions,
    files: Annotated[list[Path] | None, typer.Argument(help="Timelines (JSON); none: simulate the schedule.")] = None,
    out: Annotated[Path | None, out_option("Draw a picture, .png, .svg or .pdf, or a page to zoom in, .html.")] = None,
    columns: Annotated[int, typer.Option(help="Characters of a line, without --out.", min=20)] = 100,
    title: Annotated[str, typer.Option(help="Above the picture.")] = "",
    simulation: SimulationOptions = SimulationOptions(),  # noqa: B008 -- frozen
) -> None:
    """Draw Timelines, one under another on one time axis (.png, .svg, .pdf, .html), or as text.

    Exit code 1 when what is predicted for a schedule does not fit into --memory-limit.
    """
    from pipesched.simulator.views import GANTT_SUFFIXES
    from pipesched.workflows.timelines import Gantt

    check_outputs((out, GANTT_SUFFIXES))
    shown = read_shown(files, schedule, costs, simulation)
    picture = Gantt(shown.timelines, title, shown.details)
    if out is not None:
        picture.save(out)
    else:
        print("\n".join([*([terminal_line(title)] if title else []), picture.to_text(columns), *shown.notes]))
    end_if_over(shown.over)
