"""``pipesched simulate``: what a schedule would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.errors import NEGATIVE
from pipesched.files import JSON, TIMELINE, check_outputs, emit, write_timeline
from pipesched.options import CostOptions, Json, Out, ScheduleOptions, Seed, grouped
from pipesched.output import num_bytes, percent, print_json, print_table, seconds
from pipesched.predict import Jitter, Protocol, predict

if TYPE_CHECKING:
    from simulator.metrics import Metrics


@grouped
def simulate(
    schedule: ScheduleOptions,
    costs: CostOptions,
    protocol: Protocol = "rendezvous",
    jitter: Jitter = 0.0,
    seed: Seed = 0,
    timeline: Annotated[Path | None, typer.Option(help="Write every span: .json, .csv or .parquet.")] = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """Predict time, bubbles, idle time by cause and memory. Exit code 1 when a device runs out of memory."""
    from simulator.memory import over_capacity
    from simulator.metrics import metrics

    check_outputs((timeline, TIMELINE), (out, JSON))
    loaded = schedule.load()
    stage_costs, cluster = costs.load(loaded)
    predicted = predict(loaded, stage_costs, cluster, protocol=protocol, jitter=jitter, seed=seed)
    found, over = metrics(predicted), over_capacity(predicted.memory, cluster, predicted)
    data = {
        "schedule": loaded.name,
        **found.to_dict(),
        "throughput_unit": "micro-batches per second",
        "fits": over is None,
    }
    if timeline is not None:
        write_timeline(predicted, timeline)
    if out is not None:
        import json as standard_json

        emit(standard_json.dumps(data, indent=2, allow_nan=False), out)
    if json:
        print_json(data)
    elif out is None:
        _print(loaded.name, found)
    if over is not None:
        import sys

        print(f"pipesched: over memory: {over}", file=sys.stderr)
        raise typer.Exit(NEGATIVE)


def _print(name: str, found: Metrics) -> None:
    caption = (
        f"makespan {seconds(found.makespan_s)}; bubble_fraction {percent(found.bubble_fraction)} of all device time"
        f"; bubble_overhead {percent(found.bubble_overhead)} over the busiest device's work"
        f"; {found.throughput:.4g} micro-batches/s"
    )
    rows = []
    for device in found.devices:
        causes = [f"{cause} {seconds(idle_s)}" for cause, idle_s in device.idle_by_cause_s if idle_s > 0]
        rows.append(
            {
                "device": str(device.device),
                "busy": seconds(device.busy_s),
                "idle": seconds(device.idle_s),
                "span": seconds(device.span_s),
                "peak memory": num_bytes(device.peak_memory_bytes),
                "idle by cause": ", ".join(causes),
            }
        )
    print_table(name, rows, caption)
