"""``pipesched simulate``: what a schedule would cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.errors import NEGATIVE
from pipesched.files import CSV, JSON, TIMELINE, check_outputs, emit, write_timeline
from pipesched.options import CostOptions, Json, Out, ScheduleOptions, Seed, grouped
from pipesched.output import num_bytes, percent, print_json, print_table, seconds
from pipesched.predict import Buffers, Jitter, Protocol, predict

if TYPE_CHECKING:
    from simulator.metrics import Metrics


@grouped
def simulate(
    schedule: ScheduleOptions,
    costs: CostOptions,
    protocol: Protocol = "rendezvous",
    jitter: Jitter = 0.0,
    seed: Seed = 0,
    buffers: Buffers = "pooled",
    timeline: Annotated[Path | None, typer.Option(help="Write every span: .json, .csv or .parquet.")] = None,
    memory: Annotated[Path | None, typer.Option(help="Write what every device holds over time: .csv.")] = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """Predict time, bubbles, idle time by cause and memory. Exit code 1 when a device runs out of memory."""
    from simulator.in_flight import in_flight, peak_in_flight
    from simulator.memory import over_capacity
    from simulator.metrics import metrics
    from simulator.summary import fits

    check_outputs((timeline, TIMELINE), (memory, CSV), (out, JSON))
    loaded = schedule.load()
    stage_costs, cluster = costs.load(loaded)
    predicted = predict(loaded, stage_costs, cluster, protocol=protocol, jitter=jitter, seed=seed, buffers=buffers)
    found, over = metrics(predicted), over_capacity(predicted.memory, cluster, predicted)
    counts = in_flight(predicted, stage_costs, loaded)
    peaks = {device: peak.microbatches for device, peak in peak_in_flight(counts).items()}
    data = {
        "schedule": loaded.name,
        **found.to_dict(),
        "throughput_unit": "micro-batches per second",
        "fits": fits(predicted, cluster),
    }
    for device in data["devices"]:
        device["peak_microbatches"] = peaks[device["device"]]
    if memory is not None:
        from simulator.memory_table import memory_table
        from simulator.tables import to_csv

        emit(to_csv(memory_table(counts, predicted.memory)), memory)
    if timeline is not None:
        write_timeline(predicted, timeline)
    if out is not None:
        import json as standard_json

        emit(standard_json.dumps(data, indent=2, allow_nan=False), out)
    if json:
        print_json(data)
    elif out is None:
        _print(loaded.name, found, peaks)
    if over is not None:
        import sys

        print(f"pipesched: over memory: {over}", file=sys.stderr)
        raise typer.Exit(NEGATIVE)


def _print(name: str, found: Metrics, microbatches: Mapping[int, float]) -> None:
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
                "micro-batches": f"{microbatches[device.device]:.4g}",
                "idle by cause": ", ".join(causes),
            }
        )
    print_table(name, rows, caption)
