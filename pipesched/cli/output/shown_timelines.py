"""The Timelines of a picture or trace: read from files, or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.simulation_options import SimulationOptions
from pipesched.cli.output.doubts import doubts_of_prediction
from pipesched.cli.output.memory_lines import limit_lines
from pipesched.cli.terminal import simulating

if TYPE_CHECKING:
    from pipesched.schedules import Timeline
    from pipesched.simulator.memory import OverCapacity
    from pipesched.simulator.views import RunDetails


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
    files: Sequence[Path] | None, schedule: ScheduleOptions, costs: CostOptions, simulation: SimulationOptions
) -> Shown:
    """Return the Timelines in `files`; without files, the prediction for the schedule.

    Raises:
        InputError: There are files, and options of a simulation.
        ScheduleError: A file is no Timeline, or the schedule does not exist.
    """
    if files:
        require_no_simulation(files[0], schedule, costs, simulation)
        from pipesched.schedules.formats import read_timeline, suffix_of

        for file in files:
            if suffix_of(file) == ".csv":
                raise InputError(f"{file}: got a table, expected a Timeline (.json); a schedule? try -f {file}")
        return Shown(tuple(read_timeline(path) for path in files))
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
    file: Path, schedule: ScheduleOptions, costs: CostOptions, simulation: SimulationOptions
) -> None:
    """Refuse options of a simulation beside the file of a Timeline.

    Raises:
        InputError: There are some.
    """
    if schedule != ScheduleOptions() or costs != CostOptions():
        raise InputError(f"{file}: got options of a schedule or its costs too, expected one or the other")
    if simulation != SimulationOptions():
        raise InputError(
            f"{file}: got options of a simulation too, as --protocol or --jitter, expected them where a schedule is "
            "simulated; leave them out"
        )
