"""A schedule and its costs to a predicted Timeline, as most subcommands need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.output import spinner

if TYPE_CHECKING:
    from profiles.cluster import Cluster
    from profiles.stage_costs import StageCosts
    from schedules.schedule import Schedule
    from schedules.timeline import Timeline

Protocol = Annotated[
    Literal["rendezvous", "eager"], typer.Option(help="Transfers start when both sides have posted, or one has.")
]
Buffers = Annotated[
    Literal["pooled", "per_microbatch"],
    typer.Option(help="Receive buffers as our executor has them, or as PyTorch's: one per micro-batch, always."),
]
Jitter = Annotated[float, typer.Option(help="Sigma of a log-normal factor on every op.", min=0.0, max=10.0)]


_LONG = 20_000
"""Ops that take about half a second."""


def predict(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    *,
    protocol: Literal["rendezvous", "eager"] = "rendezvous",
    jitter: float = 0.0,
    seed: int = 0,
    buffers: Literal["pooled", "per_microbatch"] = "pooled",
) -> Timeline:
    """Check, simulate, and add the memory, if the costs say anything of it."""
    from dataclasses import replace

    from schedules.check import require_runnable
    from schedules.lower import lower
    from simulator.memory import memory
    from simulator.simulate import simulate

    with spinner(f"simulating {schedule.name}", if_long=sum(map(len, schedule.ops)) > _LONG):
        require_runnable(schedule)
        lowered = lower(schedule)
        timeline = simulate(lowered, costs, cluster, protocol=protocol, jitter=jitter, seed=seed)
        if not costs.has_bytes:
            return timeline
        return replace(timeline, memory=memory(timeline, costs, lowered, buffers=buffers))
