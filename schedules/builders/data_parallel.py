"""Data parallelism: one stage, the whole model, with a replica on every rank.

    rank 0  F0 B0 F3 B3 F6 B6  Reduce Step
    rank 1  F1 B1 F4 B4        Reduce Step
    rank 2  F2 B2 F5 B5        Reduce Step

Micro-batch i belongs to rank i mod p, so ranks differ by at most one micro-batch, and one is in flight on each. All
gradients are summed at the end (PyTorch DistributedDataParallel, arXiv:2006.15704, without its overlap with B).
"""

from __future__ import annotations

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders._spelling import Letter, spelled, stage_letters
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Reduce


def data_parallel(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build data parallelism; it takes ceil(m / p) (t_f + t_b), and then the all-reduce.

    Raises:
        ScheduleError: A rank would have no micro-batch.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    if m < p:
        raise ScheduleError(
            f"data_parallel: got {m} micro-batches for {p} ranks, expected at least one for each; try {p} micro-batches"
        )
    rows = ["FB" * len(range(rank, m, p)) + "R" * (p > 1) + "S" for rank in range(p)]
    letters = stage_letters([0] * p, firsts=range(p), microbatches=range(0, m, p)) | {"R": Letter(Reduce, [0] * p)}
    return make_schedule("data_parallel", 1, m, spelled(rows, letters))
