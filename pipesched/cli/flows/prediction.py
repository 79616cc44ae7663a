"""A schedule and its costs to a predicted Timeline, as most subcommands need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.cli.options.traffic_options import TrafficOptions
from pipesched.cli.output.terminal import spinner

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import StageCosts
    from pipesched.schedules import Schedule, Timeline

BuffersOption = Annotated[
    Literal["pooled", "per_microbatch"],
    typer.Option(help="Receive buffers as our executor has them, or as PyTorch's: one per micro-batch, always."),
]

_LONG = 20_000
"""Ops that take about half a second."""


def predict_schedule(
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
    from pipesched.schedules.lowering import lower
    from pipesched.simulator.engine import simulate
    from pipesched.simulator.memory import memory

    with spinner(f"simulating {schedule.name}", if_long=sum(map(len, schedule.ops)) > _LONG):
        require_runnable(schedule)
        lowered = lower(schedule)
        rules, cluster = traffic.rules(), traffic.on(cluster)
        timeline = simulate(lowered, costs, cluster, rules=rules, jitter=traffic.jitter, seed=traffic.seed)
        if not costs.has_bytes:
            return timeline
        return replace(timeline, memory=memory(timeline, costs, lowered, buffers=buffers))
