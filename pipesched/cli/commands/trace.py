"""``pipesched trace``: Timelines for Perfetto."""

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
from pipesched.cli.output.output_files import JSON, check_outputs, emit
from pipesched.cli.output.shown_timelines import read_shown


@grouped
def trace(
    schedule: ScheduleOptions,
    costs: CostOptions,
    files: Annotated[list[Path] | None, typer.Argument(help="Timelines (JSON); none: simulate the schedule.")] = None,
    out: Annotated[Path | None, out_option("Write the trace: .json.")] = None,
    simulation: SimulationOptions = SimulationOptions(),  # noqa: B008 -- frozen
) -> None:
    """Write a trace that ui.perfetto.dev opens: lanes per rank, arrows for messages, memory as counters.

    Exits with 1 if the prediction for a schedule exceeds --memory-limit.
    """
    from pipesched.workflows.timelines import Trace

    check_outputs((out, JSON))
    shown = read_shown(files, schedule, costs, simulation)
    emit(Trace(shown.timelines).to_json(), out)
    end_if_over(shown.over)
