"""GPipe, all forwards then all backwards (AFAB): arXiv:1811.06965, section 2.3.

    rank 0  F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3
    rank 1  .. F0 F1 F2 F3 .. .. B0 B1 B2 B3 ..
    rank 2  .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. ..

Backwards run in the order of the forwards, as in PyTorch. Every rank holds m micro-batches when the backwards begin.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders._spelling import rank_letters, spelled
from pipesched.schedules.common import positive


def gpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build GPipe; its makespan is (m + p - 1)(t_f + t_b) on equal stages, with links that take no time."""
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    rows = ["F" * num_microbatches + "B" * num_microbatches + "S"] * num_ranks
    return make_schedule("gpipe", num_ranks, num_microbatches, spelled(rows, rank_letters(num_ranks)))
