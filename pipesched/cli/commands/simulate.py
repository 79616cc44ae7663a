"""``pipesched simulate``: what a schedule would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.flows.memory_limit import end_if_over, limit_lines, require_judged
from pipesched.cli.flows.planned_run import planned_costs
from pipesched.cli.flows.prediction import BuffersOption, predict_schedule
from pipesched.cli.flows.steady_time import steady_s_per_microbatch
from pipesched.cli.options.schedule_options import CostOptions, Json, ScheduleOptions, grouped, out_option
from pipesched.cli.options.traffic_options import TrafficOptions
from pipesched.cli.output.output_files import CSV, JSON, TIMELINE, check_outputs, emit, write_timeline
from pipesched.cli.output.terminal import num_bytes, percent, print_json, print_table, progress_bar, seconds

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import StageCosts
    from pipesched.schedules import Schedule
    from pipesched.simulator.analysis import Metrics
    from pipesched.simulator.engine import Distribution


@grouped
def simulate(
    schedule: ScheduleOptions,
    costs: CostOptions,
    traffic: TrafficOptions = TrafficOptions(),  # noqa: B008 -- frozen
    runs: Annotated[int, typer.Option(help="With --jitter: runs of which the percentiles are shown.", min=1)] = 1,
    buffers: BuffersOption = "pooled",
    timeline: Annotated[Path | None, typer.Option(help="Write every span: .json, .csv or .parquet.")] = None,
    memory: Annotated[Path | None, typer.Option(help="Write what every device holds over time: .csv.")] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write what --json prints: .json.")] = None,
) -> None:
    """Predict time, bubbles, idle time by cause and memory. Exit code 1 when a device runs out of memory."""
    from pipesched.simulator.analysis import fits, metrics
    from pipesched.simulator.memory import in_flight, over_capacity, peak_in_flight

    check_outputs((timeline, TIMELINE), (memory, CSV), (out, JSON))
    loaded = schedule.load()
    costs, traffic = planned_costs(schedule, costs, traffic)
    stage_costs, cluster = costs.load(loaded)
    require_judged(costs.machines, stage_costs)
    stage_costs = traffic.compressed(stage_costs, costs.element_bytes())
    predicted = predict_schedule(loaded, stage_costs, cluster, traffic=traffic, buffers=buffers)
    spread = None if runs == 1 else _spread(loaded, stage_costs, cluster, traffic, runs)
    found, over = metrics(predicted), over_capacity(predicted.memory, cluster, predicted)
    steady_s = steady_s_per_microbatch(schedule, loaded, predicted, stage_costs, cluster, traffic)
    counts = in_flight(predicted, stage_costs, loaded)
    peaks = {device: peak.microbatches for device, peak in peak_in_flight(counts).items()}
    data = {
        "schedule": loaded.name,
        **found.to_dict(),
        "throughput_unit": "micro-batches per second",
        "steady_s_per_microbatch": steady_s,
        "fits": fits(predicted, cluster),
        "reductions": _reductions(loaded, stage_costs, traffic.on(cluster)),
        "stage_share": costs.stage_share(loaded),
    }
    if spread is not None:
        data["distribution"] = spread.to_dict()
    for device in data["devices"]:
        device["peak_microbatches"] = peaks[device["device"]]
    if memory is not None:
        from pipesched.simulator.analysis import to_csv
        from pipesched.simulator.views import memory_table

        emit(to_csv(memory_table(counts, predicted.memory)), memory)
    if timeline is not None:
        write_timeline(predicted, timeline)
    if out is not None:
        import json as standard_json

        emit(standard_json.dumps(data, indent=2, allow_nan=False), out)
    if json:
        print_json(data)
    elif out is None:
        limit = limit_lines(costs.machines, cluster, loaded.rank_to_device, has_bytes=stage_costs.has_bytes)
        _print(loaded.name, found, peaks, spread, [*_pace(steady_s), *limit, *costs.shares(loaded)])
    end_if_over(over)


def _pace(steady_s: float | None) -> list[str]:
    return [] if steady_s is None else [f"steady, when it goes on: {seconds(steady_s)} per micro-batch"]


def _spread(
    schedule: Schedule, costs: StageCosts, cluster: Cluster, traffic: TrafficOptions, runs: int
) -> Distribution:
    """Simulate with as many seeds, in several processes where that takes long."""
    from pipesched.profiles.processes import num_cores
    from pipesched.schedules.lowering import lower
    from pipesched.simulator.engine import distribution, makespans

    if not traffic.jitter:
        raise InputError(f"--runs: got {runs} without --jitter, expected both: all would be the same; try --jitter 0.1")
    lowered = lower(schedule)
    is_long = runs * sum(map(len, lowered.ops)) > _LONG
    found = []
    with progress_bar("simulating") as tick:
        for makespan_s in makespans(
            lowered, costs, traffic.on(cluster),
            rules=traffic.rules(), jitter=traffic.jitter, seeds=range(traffic.seed, traffic.seed + runs),
            num_processes=num_cores() if is_long else 1,
        ):  # fmt: skip
            found.append(makespan_s)
            tick(len(found) / runs)
    return distribution(found)


_LONG = 2_000_000
"""Ops that take about half a minute."""


def _reductions(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> list[dict[str, object]]:
    """Return how the gradients of each stage are summed, and how long that takes where nothing is in the way."""
    from pipesched.profiles.clusters import all_reduce

    found: list[dict[str, object]] = []
    for stage, ranks in schedule.reducers.items():
        devices = [schedule.rank_to_device[rank] for rank in ranks]
        plan = all_reduce(costs.stages[stage].weight_bytes, devices, cluster)
        found.append({"stage": stage, "devices": devices, "way": plan.way, "seconds": plan.seconds})
    return found


def _print(
    name: str,
    found: Metrics,
    microbatches: Mapping[int, float],
    spread: Distribution | None,
    notes: Sequence[str],
) -> None:
    caption = (
        f"makespan {seconds(found.makespan_s)}; bubble_fraction {percent(found.bubble_fraction)} of all device time"
        f"; bubble_overhead {percent(found.bubble_overhead)} over the busiest device's work"
        f"; {found.throughput:.4g} micro-batches/s"
    )
    if spread is not None:
        caption += (
            f"\n{spread.runs} runs: min {seconds(spread.min_s)}, p50 {seconds(spread.p50_s)}, "
            f"p90 {seconds(spread.p90_s)}, p99 {seconds(spread.p99_s)}, max {seconds(spread.max_s)}"
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
    print_table(name, rows, "\n".join([caption, *notes]))
