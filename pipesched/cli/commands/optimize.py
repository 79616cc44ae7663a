"""``pipesched optimize``: the fastest order of a schedule's ops, and a proven bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pipesched
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.simulation_options import SimulationOptions
from pipesched.cli.output.doubts import doubts_of_prediction
from pipesched.cli.output.memory_lines import end_if_over, limit_lines
from pipesched.cli.output.output_files import CSV, JSON, check_outputs
from pipesched.cli.terminal import percent, print_json, print_result, progress_bar
from pipesched.cli.terminal import seconds as in_seconds
from pipesched.questions import OptimizeSettings
from pipesched.schedules.common import values_of
from pipesched.simulator import NetworkOptions

if TYPE_CHECKING:
    from pipesched.schedules import Schedule


@grouped
def optimize(
    schedule: ScheduleOptions,
    costs: CostOptions,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
    asked: OptimizeSettings = OptimizeSettings(),  # noqa: B008
    gantt: Annotated[Path | None, typer.Option(help="Draw the result: .png, .svg, .pdf or a page, .html.")] = None,
    json: Json = False,
    out: Annotated[list[Path] | None, out_option("Write the lists: .json, or PyTorch's .csv; repeatable.")] = None,
) -> None:
    """Find the fastest op order for a schedule and prove a lower bound.

    The ops stay on their ranks, within the limit of micro-batches in flight. Without a flush (pipedream, xpipe ..) the
    objective is the period. Needs OR-tools: pip install "pipesched[optimize]". Exits with 1 if the result exceeds
    --memory-limit.
    """
    from pipesched.schedules.formats import suffix_of, write_csv
    from pipesched.simulator.views import GANTT_SUFFIXES, draw_gantt

    outputs = out or []
    check_outputs(*((path, (*JSON, *CSV)) for path in outputs), (gantt, GANTT_SUFFIXES))
    source = schedule.source()
    if any(suffix_of(path) in CSV for path in outputs):
        write_csv(source.schedule)  # refuses lists that the CSV cannot express before the search
    setup = costs.setup(source, SimulationOptions(network=network))
    with progress_bar(f"ordering {source.schedule.name}") as tick:
        tick(0.0, "orders that are known")
        result = pipesched.optimize(
            source,
            setup,
            **values_of(asked),
            progress=lambda share, best_s, bound_s: tick(share, _state(best_s, bound_s)),
        )
    for path in outputs:
        result.save(path)
    simulation = result.simulation
    if gantt is not None:
        draw_gantt([result.timeline], gantt, details=[simulation.details])
    notes = [*doubts_of_prediction(simulation, costs.machines)]
    limits = limit_lines(costs.machines, simulation)
    if limits and any(suffix_of(path) in CSV for path in outputs) and _steps_early(result.schedule):
        notes.append(
            "the .csv has no steps: as it is read, stages step after the last op of their rank, and hold their "
            "gradients until then; a .json has them"
        )
    if json:
        print_json("optimize", result.to_dict(), notes)
    else:
        print_result(result.table(), [*limits, *costs.shares(result.schedule), *notes])
    end_if_over(simulation.over)


def _steps_early(schedule: Schedule) -> bool:
    """Whether a stage steps before the last op of its rank."""
    from pipesched.schedules.ops import Step

    steps = [[isinstance(op, Step) for op in row] for row in schedule.ops]
    return any(is_step and not all(row[place:]) for row in steps for place, is_step in enumerate(row))


def _state(best_s: float, bound_s: float) -> str:
    gap = f"at most {percent(best_s / bound_s - 1)} above the least" if bound_s else "no bound yet"
    return f"best {in_seconds(best_s)}, {gap}"
