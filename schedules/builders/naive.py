"""Naive model parallelism: one micro-batch at a time through all stages.

    rank 0  F0 .. .. .. .. B0 F1 .. .. .. .. B1
    rank 1  .. F0 .. .. B0 .. .. F1 .. .. B1 ..
    rank 2  .. .. F0 B0 .. .. .. .. F1 B1 .. ..

The baseline that every pipeline must beat: one device works at a time.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders._spelling import rank_letters, spelled
from pipesched.schedules.common import positive


def naive(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build the schedule without any pipelining; it takes m p (t_f + t_b) on equal stages."""
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    rows = ["FB" * num_microbatches + "S"] * num_ranks
    return make_schedule("naive", num_ranks, num_microbatches, spelled(rows, rank_letters(num_ranks)))
