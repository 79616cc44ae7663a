"""How many settings a sweep predicts per second."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pipesched
from speed_rows.row import Figure, Row

COSTS = pipesched.DeviceCost(
    0.010, backward_input_s=0.010, backward_weight_s=0.010, step_s=0.005,
    output_bytes=8_000_000, saved_bytes=400_000_000, weight_bytes=1_000_000_000,
)  # fmt: skip
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1", "zbv")
COUNTS = range(57, 73)
NUM_BANDWIDTHS = 10_000


def figures() -> Iterator[Figure]:
    bandwidths = [1e9 * (1 + number / 100) for number in range(NUM_BANDWIDTHS)]
    cases: dict[str, tuple[int, dict[str, Any]]] = {
        "lists of its own": (20_000, {"schedules": SCHEDULES, "num_microbatches": COUNTS}),
        "the same lists": (
            500_000,
            {"schedules": ["1f1b"], "num_microbatches": [64], "link": {"bandwidth_bytes_per_s": bandwidths}},
        ),
    }
    for what, (goal, arguments) in cases.items():
        speeds = []
        for _ in range(3):
            begun_s = time.perf_counter()
            sweep = pipesched.sweep(costs=COSTS, num_ranks=[8], num_workers=len(os.sched_getaffinity(0)), **arguments)
            speeds.append(len(sweep.to_rows()) / (time.perf_counter() - begun_s))
        speed = statistics.median(speeds)
        yield Figure(f"`sweep`, (8, 64), {what}", f"{goal:,} settings/s", f"{speed:,.0f} settings/s", speed >= goal)


ROW = Row("Sweeps", "on all cores, the median of 3", figures)
