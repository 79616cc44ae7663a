"""``pipesched simulate``: what a schedule would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.simulation_options import BuffersOption, SimulationOptions
from pipesched.cli.output.doubts import doubts_of_prediction
from pipesched.cli.output.memory_lines import end_if_over, limit_lines
from pipesched.cli.output.output_files import CSV, JSON, PAGE, TIMELINE, check_outputs, emit, write_timeline
from pipesched.cli.terminal import json_answer, print_json, print_result, progress_bar, simulating
from pipesched.schedules.formats import suffix_of


@grouped
def simulate(
    schedule: ScheduleOptions,
    costs: CostOptions,
    simulation: SimulationOptions = SimulationOptions(),  # noqa: B008 -- frozen
    runs: Annotated[int, typer.Option(help="With --jitter: runs of which the percentiles are shown.", min=1)] = 1,
    spread: Annotated[
        int,
        typer.Option(
            help="With a --profile, or costs from runs: a range of the makespan, by so many draws of the seconds.",
            min=0,
        ),
    ] = 0,
    bound: Annotated[
        float | None,
        typer.Option(
            help="Say how far it is above the least time of any order of its ops under the same memory, searched for "
            "so many seconds; 0: by simple bounds alone.",
            min=0,
        ),
    ] = None,
    buffers: BuffersOption = "pooled",
    timeline: Annotated[Path | None, typer.Option(help="Write every span: .json, .csv, .parquet or .html.")] = None,
    memory: Annotated[Path | None, typer.Option(help="Write what every device holds over time: .csv.")] = None,
    json: Json = False,
    out: Annotated[
        list[Path] | None, out_option("Write what --json prints, .json, or a page to zoom in, .html; repeatable.")
    ] = None,
) -> None:
    """Predict time, bubbles, idle time by cause and memory. Exit code 1 when a device runs out of memory."""
    from pipesched.workflows.simulating import simulate_source

    check_outputs((timeline, TIMELINE), (memory, CSV), *((path, (*JSON, PAGE)) for path in out or ()))
    source = schedule.source()
    conditions = costs.conditions(source, simulation, buffers)
    with simulating(source.schedule) if runs == 1 else progress_bar("simulating") as tick:
        result = simulate_source(
            source,
            conditions,
            runs,
            tick or (lambda fraction: None),  # noqa: ARG005
            spread=spread,
            bound_seconds=bound,
        )
        data = result.to_dict()  # which works out memory and pace
    notes = doubts_of_prediction(result, costs.machines)
    said = result.table().noted([*limit_lines(costs.machines, result), *costs.shares(result.schedule), *notes])
    if memory is not None:
        from pipesched.simulator.analysis import to_csv
        from pipesched.simulator.views import memory_table

        emit(to_csv(memory_table(result.in_flight, result.timeline.memory)), memory)
    if timeline is not None:
        write_timeline(result.timeline, timeline, result.details, said.lines(()))
    for path in out or ():
        if suffix_of(path) == PAGE:
            write_timeline(result.timeline, path, result.details, said.lines(()))
        else:
            emit(json_answer("simulate", data, notes), path)
    if json:
        print_json("simulate", data, notes)
    else:
        print_result(said)
    end_if_over(result.over)
