"""A schedule and its costs to a predicted Timeline, as most subcommands need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.output import spinner
from pipesched.traffic_options import TrafficOptions

if TYPE_CHECKING:
    from pipesched.profiles.cluster import Cluster
    from pipesched.profiles.stage_costs import StageCosts
    from pipesched.schedules.schedule import Schedule
    from pipesched.schedules.timeline import Timeline

Buffers = Annotated[
    Literal["pooled", "per_microbatch"],
    typer.Option(help="Receive buffers as our executor has them, or as PyTorch's: one per micro-batch, always."),
]

_LONG = 20_000
"""Ops that take about half a second."""


def predict(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    *,
    traffic: TrafficOptions = TrafficOptions(),  # noqa: B008 -- frozen
    buffers: Literal["pooled", "per_microbatch"] = "pooled",
) -> Timeline:
    """Check, simulate, and add the memory, if the costs say anything of it.

    Args:
        costs: Compressed, if they are to be.
        traffic: How messages go, and what is slow.
        buffers: How receive buffers are had.

    Raises:
        InputError: An option is none.
        ScheduleError: The schedule cannot run.
        SimulationError: It cannot be simulated.
    """
    from dataclasses import replace

    from pipesched.schedules.check import require_runnable
    from pipesched.schedules.lower import lower
    from pipesched.simulator.memory import memory
    from pipesched.simulator.simulate import simulate

    with spinner(f"simulating {schedule.name}", if_long=sum(map(len, schedule.ops)) > _LONG):
        require_runnable(schedule)
        lowered = lower(schedule)
        rules, cluster = traffic.rules(), traffic.on(cluster)
        timeline = simulate(lowered, costs, cluster, rules=rules, jitter=traffic.jitter, seed=traffic.seed)
        if not costs.has_bytes:
            return timeline
        return replace(timeline, memory=memory(timeline, costs, lowered, buffers=buffers))
