"""The processor time of sweeps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pipesched
from pipesched.profiles.costs import LayerCosts, StageCost
from speed_rows.row import Figure, Row

COSTS = pipesched.DeviceCost(
    0.010, backward_input_s=0.010, backward_weight_s=0.010, step_s=0.005,
    output_bytes=8_000_000, saved_bytes=400_000_000, weight_bytes=1_000_000_000,
)  # fmt: skip
LAYERS = LayerCosts(
    tuple(StageCost(1e-3 * (1 + k % 5 / 5), 2e-3 * (1 + k % 7 / 7), output_bytes=8_000_000) for k in range(24))
)
BANDWIDTHS = [1e9 * (1 + number / 100) for number in range(1_000)]
GRID: Mapping[str, Any] = {
    "schedules": ("gpipe", "1f1b", "interleaved", "zb_h1"),
    "setup": COSTS,
    "num_ranks": (2, 4, 8, 16),
    "num_microbatches": (16, 32, 48, 64),
    "recompute": "both",
    "link": {"bandwidth_bytes_per_s": (1e9, 4e9, 16e9, 64e9, 256e9)},
}
LINKS: Mapping[str, Any] = {
    "num_ranks": 8,
    "num_microbatches": 32,
    "link": {"bandwidth_bytes_per_s": BANDWIDTHS},
}
FEW_LINKS: Mapping[str, Any] = {**LINKS, "link": {"bandwidth_bytes_per_s": BANDWIDTHS[::10]}}
COUNTS: Mapping[str, Any] = {
    "schedules": ["1f1b"],
    "setup": LAYERS,
    "num_ranks": 4,
    "num_microbatches": range(1, 145),
}
CASES: Mapping[str, tuple[float, Mapping[str, Any]]] = {
    "grid of schedules, ranks, micro-batches and links": (8.0, GRID),
    "1F1B over links": (10.0, {"schedules": ["1f1b"], "setup": COSTS, **LINKS}),
    "24 layers, pipedream over links": (1.0, {"schedules": ["pipedream"], "setup": LAYERS, **FEW_LINKS}),
    "24 layers, 1F1B of 1 to 144 micro-batches": (144 * 0.040, COUNTS),
}
"""Sweeps, each with the processor time that is its goal [s]."""


def figures() -> Iterator[Figure]:
    for what, (goal_s, arguments) in CASES.items():
        begun_s = time.process_time()
        frame = pipesched.sweep(**arguments, num_workers=1).to_frame()
        taken_s = time.process_time() - begun_s
        assert frame["makespan_s"].notna().all(), "all can be"
        figure = f"{taken_s:.1f} s, {taken_s / len(frame) * 1e3:.1f} ms a setting"
        yield Figure(f"`sweep`, {what}, {len(frame):,} settings", f"{goal_s:.2g} s", figure, taken_s <= goal_s)


ROW = Row("Sweeps", "from the values to the table, processor time of one process, single runs", figures)
