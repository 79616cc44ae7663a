"""``pipesched simulate``: the predicted time and memory of a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import pipesched
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.failure_options import FailureOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.simulation_options import SimulationOptions
from pipesched.cli.output.doubts import doubts_of_prediction
from pipesched.cli.output.memory_lines import end_if_over, limit_lines
from pipesched.cli.output.output_files import CSV, TIMELINE, check_outputs, emit, write_timeline
from pipesched.cli.terminal import print_json, print_result, progress_bar, simulating
from pipesched.questions import SimulateSettings
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import suffix_of


@grouped
def simulate(
    schedule: ScheduleOptions,
    costs: CostOptions,
    failures: FailureOptions,
    simulation: SimulationOptions = SimulationOptions(),  # noqa: B008 -- frozen
    asked: SimulateSettings = SimulateSettings(),  # noqa: B008
    timeline: Annotated[
        Path | None, typer.Option(help="Write the Timeline, .json, .csv, .parquet or .html, as --out.")
    ] = None,
    memory: Annotated[Path | None, typer.Option(help="Write the memory of every device over time: .csv.")] = None,
    json: Json = False,
    out: Annotated[
        list[Path] | None,
        out_option(
            "Write the Timeline, .json, .csv, .parquet, or a page to zoom in, .html; with --fail-every also a picture "
            "of goodput, .png, .svg or .pdf; repeatable."
        ),
    ] = None,
) -> None:
    """Predict time, bubbles, idle time by cause and memory; with --fail-every also goodput under failures.

    Exits with 1 if a device runs out of memory.
    """
    from pipesched.simulator.views import FIGURE_SUFFIXES, draw_goodput

    failures.require_whole()
    pictures = () if failures.fail_every is None else FIGURE_SUFFIXES
    check_outputs((timeline, TIMELINE), (memory, CSV), *((path, (*TIMELINE, *pictures)) for path in out or ()))
    source = schedule.source()
    setup = costs.setup(source, simulation)
    with simulating(source.schedule) if asked.num_runs == 1 else progress_bar("simulating") as tick:
        result = pipesched.simulate(source, setup, **values_of(asked), progress=tick or (lambda share: None))  # noqa: ARG005
        data = result.to_dict()  # which works out memory and pace
        goodput = failures.goodput(result.step_s, len(result.timeline.devices), simulation.seed)
    if goodput is not None:
        data["goodput"] = goodput.to_dict()
    notes = doubts_of_prediction(result, costs.machines)
    if goodput is not None and result.steady_s_per_microbatch is None:
        notes.append("goodput: a step counts with the makespan, as the steady state is not known")
    said = result.table().noted([*limit_lines(costs.machines, result), *costs.shares(result.schedule), *notes])
    if memory is not None:
        from pipesched.simulator.analysis import to_csv
        from pipesched.simulator.views import memory_table

        emit(to_csv(memory_table(result.in_flight, result.timeline.memory)), memory)
    if timeline is not None:
        write_timeline(result.timeline, timeline, result.details, said.lines(()))
    for path in out or ():
        if goodput is not None and suffix_of(path) in FIGURE_SUFFIXES:
            draw_goodput(goodput.training, goodput.curve, goodput.intervals, path)
        else:
            write_timeline(result.timeline, path, result.details, said.lines(()))
    if json:
        print_json("simulate", data, notes)
    else:
        print_result(said)
        if goodput is not None:
            print_result(goodput.table())
    end_if_over(result.over)
