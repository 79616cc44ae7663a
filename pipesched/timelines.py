"""The Timelines that a picture or trace shows: read from files, or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.errors import InputError
from pipesched.options import CostOptions, ScheduleOptions
from pipesched.planned import cut
from pipesched.predict import predict
from pipesched.traffic_options import TrafficOptions

if TYPE_CHECKING:
    from pipesched.schedules.timeline import Timeline


def timelines_of(
    files: Sequence[Path] | None,
    schedule: ScheduleOptions,
    costs: CostOptions,
    traffic: TrafficOptions,
) -> tuple[list[Timeline], list[str]]:
    """Return the Timelines in `files`; without files, the prediction for the schedule, with lines on its costs."""
    if files:
        if schedule != ScheduleOptions() or costs != CostOptions():
            raise InputError(f"{files[0]}: got options of a schedule or its costs too, expected one or the other")
        if traffic != TrafficOptions():
            raise InputError(
                f"{files[0]}: got options of a simulation too, as --protocol or --jitter, expected them where a "
                "schedule is simulated; leave them out"
            )
        from pipesched.schedules.formats.timeline_json import read_timeline

        return [read_timeline(path) for path in files], []
    loaded = schedule.load()
    costs, traffic = cut(schedule, costs, traffic)
    stage_costs, cluster = costs.load(loaded)
    timeline = predict(loaded, traffic.compressed(stage_costs, costs.element_bytes()), cluster, traffic=traffic)
    return [timeline], costs.shares(loaded)
