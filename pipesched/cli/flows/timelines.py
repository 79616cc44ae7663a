"""The Timelines that a picture or trace shows: read from files, or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError
from pipesched.cli.flows.memory_limit import limit_lines, require_judged
from pipesched.cli.flows.planned_run import planned_costs
from pipesched.cli.flows.prediction import predict_schedule
from pipesched.cli.options.schedule_options import CostOptions, ScheduleOptions
from pipesched.cli.options.traffic_options import TrafficOptions

if TYPE_CHECKING:
    from pipesched.schedules import Timeline
    from pipesched.simulator.memory import OverCapacity


@dataclass(frozen=True, slots=True)
class Shown:
    """What a picture or trace shows.

    Attributes:
        timelines: At least one.
        notes: Lines on the costs and the memory limit of a prediction.
        over: Where a prediction takes more than `--memory-limit`.
    """

    timelines: list[Timeline]
    notes: Sequence[str] = ()
    over: OverCapacity | None = None


def timelines_of(
    files: Sequence[Path] | None,
    schedule: ScheduleOptions,
    costs: CostOptions,
    traffic: TrafficOptions,
) -> Shown:
    """Return the Timelines in `files`; without files, the prediction for the schedule."""
    if files:
        if schedule != ScheduleOptions() or costs != CostOptions():
            raise InputError(f"{files[0]}: got options of a schedule or its costs too, expected one or the other")
        if traffic != TrafficOptions():
            raise InputError(
                f"{files[0]}: got options of a simulation too, as --protocol or --jitter, expected them where a "
                "schedule is simulated; leave them out"
            )
        from pipesched.schedules.formats import read_timeline

        return Shown([read_timeline(path) for path in files])
    from pipesched.simulator.memory import over_capacity

    loaded = schedule.load()
    costs, traffic = planned_costs(schedule, costs, traffic)
    stage_costs, cluster = costs.load(loaded)
    require_judged(costs.machines, stage_costs)
    timeline = predict_schedule(
        loaded, traffic.compressed(stage_costs, costs.element_bytes()), cluster, traffic=traffic
    )
    limit = limit_lines(costs.machines, cluster, loaded.rank_to_device, has_bytes=stage_costs.has_bytes)
    is_limited = costs.machines.memory_limit is not None
    over = over_capacity(timeline.memory, cluster, timeline) if is_limited else None
    return Shown([timeline], [*limit, *costs.shares(loaded)], over)
