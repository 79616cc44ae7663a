"""Details of a run beside its Timeline: its settings, and the memory of its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipesched.profiles.clusters import Cluster
from pipesched.schedules import Timeline
from pipesched.simulator.views.gantt_chart import Chart


@dataclass(frozen=True, slots=True)
class RunDetails:
    """Details of a run beside its Timeline.

    Attributes:
        memory_bytes: Memory of each device [bytes]; a missing device has no limit.
        settings: Settings of the run by name, as text for people; ``costs`` is the source of the costs.
        in_flight: The most micro-batches that each device holds; empty if unknown.
    """

    memory_bytes: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    in_flight: Mapping[int, float] = field(default_factory=dict)


def run_details(
    timeline: Timeline,
    cluster: Cluster,
    settings: Mapping[str, object] | None = None,
    in_flight: Mapping[int, float] | None = None,
) -> RunDetails:
    """Return the details of a run.

    Args:
        timeline: Timeline with the devices in use.
        cluster: Cluster with their memory.
        settings: Settings of the run by name; None values are left out.
        in_flight: The most micro-batches that each device holds, or None if unknown.
    """
    limits = {device: cluster.devices[device].memory_bytes for device in timeline.devices}
    told = {name: str(value) for name, value in (settings or {}).items() if value is not None}
    known = {device: limit for device, limit in limits.items() if limit is not None}
    return RunDetails(known, told, in_flight or {})


def title_of(chart: Chart, details: Sequence[RunDetails]) -> str:
    """Return the title of a chart that was given none: schedules, numbers, and the costs if all have the same."""
    costs = {run.settings.get("costs") for run in details}
    origin = costs.pop() if len(costs) == 1 else None
    return f"{chart.title}; costs: {origin}" if origin else chart.title
