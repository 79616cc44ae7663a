"""``pipesched optimize``: the fastest order of a schedule's ops, and a proven bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pipesched
from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import EstimatedCostOptions
from pipesched.cli.options.machine_options import SimulationOptions
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.notes import doubts_of_prediction, end_if_over, limit_lines
from pipesched.cli.output.output_files import CSV, JSON, check_outputs, print_answer
from pipesched.cli.terminal import progress_bar
from pipesched.questions import OptimizeSettings
from pipesched.schedules import formats, ops
from pipesched.schedules.common import values_of
from pipesched.simulator import NetworkOptions, views
from pipesched.simulator.analysis import readable_s, readable_share
from pipesched.simulator.views import GANTT_SUFFIXES

if TYPE_CHECKING:
    from pipesched.schedules import Schedule


@grouped
def optimize(
    *,
    schedule: ScheduleOptions,
    costs: EstimatedCostOptions,
    network: NetworkOptions,
    asked: OptimizeSettings,
    gantt: Annotated[Path | None, file_option("Draw the result", GANTT_SUFFIXES)] = None,
    json: Json = False,
    out: Annotated[
        list[Path] | None, out_option("Write the lists: .json, or PyTorch's .csv", is_repeatable=True)
    ] = None,
) -> None:
    """Find the fastest op order for a schedule and prove a lower bound.

    The ops stay on their ranks, within the limit of micro-batches in flight. Without a flush (pipedream, xpipe ..) the
    objective is the period. Needs OR-tools: pip install "pipesched[optimize]". Exits with 1 if the result exceeds
    --memory-limit.
    """
    outputs = out or []
    check_outputs(*((path, (*JSON, *CSV)) for path in outputs), (gantt, GANTT_SUFFIXES))
    if schedule.step_barrier:
        raise InputError(
            "--step-barrier: got this option with optimize, which orders only F, B, I, W and R, expected no barrier; "
            "leave the option out"
        )
    source = schedule.source()
    if any(formats.suffix_of(path) in CSV for path in outputs):
        formats.write_csv(source.schedule)  # refuses lists that the CSV cannot express before the search
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
        views.draw_gantt([result.timeline], gantt, details=[simulation.details])
    notes = [*doubts_of_prediction(simulation, costs.machines), *result.notes]
    limits = limit_lines(costs.machines, simulation)
    if limits and any(formats.suffix_of(path) in CSV for path in outputs) and _steps_early(result.schedule):
        notes.append(
            "the .csv has no steps: on reading, each stage steps after the last op of its rank and keeps its gradients "
            "until then; write a .json to keep the steps"
        )
    said = result.table().noted([*limits, *costs.shares(result.schedule), *notes])
    print_answer("optimize", result.to_dict(), notes, [said], is_json=json)
    end_if_over(simulation.over)


def _steps_early(schedule: Schedule) -> bool:
    """Whether a stage steps before the last op of its rank."""
    steps = [[isinstance(op, ops.Step) for op in row] for row in schedule.ops]
    return any(is_step and not all(row[place:]) for row in steps for place, is_step in enumerate(row))


def _state(best_s: float, bound_s: float) -> str:
    gap = f"at most {readable_share(best_s / bound_s - 1)} above the minimum" if bound_s else "no bound yet"
    return f"best {readable_s(best_s)}, {gap}"
