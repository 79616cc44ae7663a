"""The time that a checkpoint costs the training that continues beside its write."""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev

import pipesched
from fault_rows.row import Row, Section
from pipesched.schedules.transforms import ScheduleSpec

MODEL, RANKS, BATCH_SIZE = "gpt", 2, 8
HALF = 8
"""Number of steps during which a checkpoint is written, and of later steps without a write."""
STEPS_BETWEEN = 100
"""Number of steps to which the cost is related."""
LARGEST_SHARE = 0.02


def lines(count: int) -> Section:
    """Yield the section on `count` checkpoints."""
    walls_s, cpus_s = [list[float]() for _ in range(2)]

    def on_step(step: int, scores: object) -> None:  # noqa: ARG001 -- as it is told
        walls_s.append(time.perf_counter())
        cpus_s.append(time.process_time())

    with tempfile.TemporaryDirectory() as name:
        pipesched.train(
            MODEL,
            ScheduleSpec(name="1f1b", num_ranks=RANKS, num_microbatches=RANKS),
            batch_size=BATCH_SIZE,
            optimizer="adam",
            num_steps=2 * HALF * (count + 1),
            checkpoint=name,
            every=2 * HALF,
            keep=1,
            on_step=on_step,
        )
        newest = max(Path(name).iterdir())
        num_bytes = sum(path.stat().st_size for path in newest.iterdir())
    yield f"`train {MODEL} -s 1f1b -p {RANKS} --optimizer adam --batch-size {BATCH_SIZE} --every {2 * HALF}`, all"
    yield f"ranks in one process, which writes {num_bytes / 1e6:.0f} MB each time. The {HALF} steps from a checkpoint"
    yield f"on alternate with the {HALF} after them, in which nothing is written; what the first take more is the cost."
    yield ""
    yield f"| | cost of a checkpoint | spread of {count} | a step | of {STEPS_BETWEEN} steps |"
    yield "|---|---|---|---|---|"
    shares = []
    for what, times_s in (("wall time", walls_s), ("CPU time", cpus_s)):
        costs_s, step_s = _costs_s(times_s), median(_differences(times_s))
        shares.append(mean(costs_s) / (STEPS_BETWEEN * step_s))
        spread_s = stdev(costs_s) if len(costs_s) > 1 else 0.0
        yield f"| {what} | {mean(costs_s):.2f} s | {spread_s:.2f} s | {step_s:.2f} s | {shares[-1]:.1%} |"
    steps_s = _differences(walls_s)
    quarter = max(1, len(steps_s) // 4)
    drift = median(steps_s[-quarter:]) / median(steps_s[:quarter]) - 1
    yield ""
    yield f"Drift: a step of the last quarter took {drift:+.0%} of the time of one of the first."
    is_kept = max(shares) <= LARGEST_SHARE
    yield f"As promised: {int(is_kept)} of 1."
    return is_kept


def _differences(times_s: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times_s)]


def _costs_s(times_s: list[float]) -> list[float]:
    """Return the extra time of the steps during each checkpoint's write over the later steps [s]."""
    costs_s = []
    for begin in range(2 * HALF - 1, len(times_s) - 2 * HALF, 2 * HALF):
        middle, end = begin + HALF, begin + 2 * HALF
        costs_s.append((times_s[middle] - times_s[begin]) - (times_s[end] - times_s[middle]))
    return costs_s


ROW = Row(
    title="The cost of a checkpoint",
    goal="every 100 steps at most 2 % of the time of a training of a GPT of 10 million parameters",
    count=4,
    lines=lines,
)
