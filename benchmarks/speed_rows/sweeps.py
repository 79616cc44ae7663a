"""How many settings a sweep predicts per second."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pipesched
from speed_rows.row import Figure, Row

COSTS = pipesched.DeviceCost(
    0.010, backward_input_s=0.010, backward_weight_s=0.010, step_s=0.005,
    output_bytes=8_000_000, saved_bytes=400_000_000, weight_bytes=1_000_000_000,
)  # fmt: skip
OWN: Mapping[str, Any] = {
    "schedules": ("gpipe", "1f1b", "interleaved", "zb_h1", "zbv"),
    "num_ranks": range(4, 13),
    "num_microbatches": range(16, 113),
    "num_chunks": (2, 3, 4),
    "where": "schedule != 'interleaved' or m % p == 0",
}
"""Thousands of lists, each of one setting, of 8 ranks and 64 micro-batches on average."""
MANY: Mapping[str, Any] = {
    **OWN,
    "schedules": (*OWN["schedules"], "1f1b_afp"),
    "parameters": {"advance": range(1, 41)},
}
"""Ten times as many, so that what starting takes is little."""
NUM_BANDWIDTHS = 200_000


def figures() -> Iterator[Figure]:
    bandwidths = [1e9 * (1 + number / 100) for number in range(NUM_BANDWIDTHS)]
    shared = {"num_ranks": 8, "num_microbatches": 64, "link": {"bandwidth_bytes_per_s": bandwidths}}
    cases: dict[str, tuple[int, Mapping[str, Any]]] = {
        "lists of its own, mostly starting": (20_000, OWN),
        "lists of its own": (20_000, MANY),
        "the same lists": (500_000, {"schedules": ["1f1b"], **shared}),
    }
    for what, (goal, arguments) in cases.items():
        speeds, each_s = [], []
        for _ in range(3):
            begun_s, begun_cpu_s = time.perf_counter(), processor_s()
            sweep = pipesched.sweep(costs=COSTS, num_workers=len(os.sched_getaffinity(0)), **arguments)
            frame = sweep.to_frame()
            speeds.append(len(frame) / (time.perf_counter() - begun_s))
            each_s.append((processor_s() - begun_cpu_s) / len(frame))
        assert frame["makespan_s"].notna().all(), "all can be"
        speed = statistics.median(speeds)
        what = f"`sweep`, (8, 64), {what}, {len(frame):,} settings"
        figure = f"{speed:,.0f} settings/s, {statistics.median(each_s) * 1e6:,.1f} us of a core each"
        yield Figure(what, f"{goal:,} settings/s", figure, speed >= goal)


def processor_s() -> float:
    """Return the processor time of this process and of those that it waited for [s]."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


ROW = Row("Sweeps", "from the values to the table, workers started meanwhile, on all cores; median of 3", figures)
