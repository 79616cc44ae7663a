"""``pipesched trace``: Timelines for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesched.files import JSON, check_outputs, emit
from pipesched.options import CostOptions, Out, ScheduleOptions, Seed, grouped
from pipesched.predict import Jitter, Protocol
from pipesched.timelines import timelines_of


@grouped
def trace(
    schedule: ScheduleOptions,
    costs: CostOptions,
    files: Annotated[list[Path] | None, typer.Argument(help="Timelines (JSON); none: simulate the schedule.")] = None,
    out: Out = None,
    protocol: Protocol = "rendezvous",
    jitter: Jitter = 0.0,
    seed: Seed = 0,
) -> None:
    """Write a trace that ui.perfetto.dev opens: lanes per rank, arrows for messages, memory as counters."""
    from simulator.trace import to_trace

    check_outputs((out, JSON))
    emit(to_trace(*timelines_of(files, schedule, costs, protocol=protocol, jitter=jitter, seed=seed)), out)
