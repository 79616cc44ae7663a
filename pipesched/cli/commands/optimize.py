"""``pipesched optimize``: the fastest order of a schedule's ops, and a proven bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.simulation_options import MessageOptions, SimulationOptions
from pipesched.cli.output.doubts import doubts_of_prediction
from pipesched.cli.output.memory_lines import end_if_over, limit_lines
from pipesched.cli.output.output_files import CSV, JSON, check_outputs
from pipesched.cli.terminal import percent, print_json, print_result, progress_bar
from pipesched.cli.terminal import seconds as in_seconds
from pipesched.workflows import MAX_PROCESSES

if TYPE_CHECKING:
    from pipesched.schedules import Schedule

_SEARCH = "Search"


@grouped
def optimize(
    schedule: ScheduleOptions,
    costs: CostOptions,
    messages: MessageOptions = MessageOptions(),  # noqa: B008 -- frozen
    in_flight: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_SEARCH,
            help="Most micro-batches in flight on a rank (default: by the memory of the devices, or the most of "
            "the schedule).",
        ),
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", rich_help_panel=_SEARCH, help="Split whole backwards into I and W.")
    ] = False,
    repeated: Annotated[
        bool,
        typer.Option(
            "--repeated",
            rich_help_panel=_SEARCH,
            help="Repeat the batch without a pause, and minimise the time from one batch to the next.",
        ),
    ] = False,
    may_recompute: Annotated[
        bool,
        typer.Option(
            "--may-recompute",
            rich_help_panel=_SEARCH,
            help="Let stages keep only their input and recompute the rest, if that is faster overall.",
        ),
    ] = False,
    seconds: Annotated[
        float, typer.Option(rich_help_panel=_SEARCH, help="Time limit of the search [s]; 0: only simple bounds.", min=0)
    ] = 20.0,
    workers: Annotated[
        int | None,
        typer.Option(rich_help_panel=_SEARCH, help="Threads (default: one per core).", min=1, max=MAX_PROCESSES),
    ] = None,
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
    from pipesched.workflows.optimizing import optimize_source

    outputs = out or []
    check_outputs(*((path, (*JSON, *CSV)) for path in outputs), (gantt, GANTT_SUFFIXES))
    source = schedule.source()
    if any(suffix_of(path) in CSV for path in outputs):
        write_csv(source.schedule)  # refuses lists that the CSV cannot express before the search
    conditions = costs.conditions(source, SimulationOptions(messages=messages))
    with progress_bar(f"ordering {source.schedule.name}") as tick:
        tick(0.0, "orders that are known")
        result = optimize_source(
            source,
            conditions,
            in_flight=in_flight,
            is_split=split or None,
            is_repeated=repeated,
            may_recompute=may_recompute,
            seconds=seconds,
            num_workers=workers,
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
    from pipesched.schedules import Step

    steps = [[isinstance(op, Step) for op in row] for row in schedule.ops]
    return any(is_step and not all(row[place:]) for row in steps for place, is_step in enumerate(row))


def _state(best_s: float, bound_s: float) -> str:
    gap = f"at most {percent(best_s / bound_s - 1)} above the least" if bound_s else "no bound yet"
    return f"best {in_seconds(best_s)}, {gap}"
