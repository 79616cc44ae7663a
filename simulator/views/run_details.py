"""What is known of a run beside its Timeline: what was supposed, and what its devices can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipesched.profiles.clusters import Cluster
from pipesched.schedules import Timeline
from pipesched.simulator.views.gantt_chart import Chart


@dataclass(frozen=True, slots=True)
class RunDetails:
    """What is known of a run beside its Timeline.

    Attributes:
        memory_bytes: What each device can hold [bytes]; one that is not there has no limit.
        settings: What was supposed, as people read it, by its name; ``costs`` says where the costs come from.
        in_flight: The most micro-batches that each device holds; empty where it is not known.
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
        timeline: Says which devices are in use.
        cluster: Says what they can hold.
        settings: What was supposed, by its name; what is None is left out.
        in_flight: The most micro-batches that each device holds; None: not known.
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
