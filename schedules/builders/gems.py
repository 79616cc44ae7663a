"""GEMS-MASTER, two replicas of the model that take turns: SC 2020, doi:10.1109/SC41405.2020.00049.

p = 4 ranks, m = 3 micro-batches: the even ones go down, with stage k on rank k, the odd ones up, with stage k on rank
3 - k. Cells show stage, op and micro-batch (1F0):

    rank 0  0F0 ..  ..  ..  ..  ..  ..  0B0 3F1 3B1 0F2 ..  ..  ..  ..  ..  ..  0B2
    rank 1  ..  1F0 ..  ..  ..  ..  1B0 2F1 ..  ..  2B1 1F2 ..  ..  ..  ..  1B2 ..
    rank 2  ..  ..  2F0 ..  ..  2B0 1F1 ..  ..  ..  ..  1B1 2F2 ..  ..  2B2 ..  ..
    rank 3  ..  ..  ..  3F0 3B0 0F1 ..  ..  ..  ..  ..  ..  0B1 3F2 3B2 ..  ..  ..

The first stage of one replica and the last stage of the other are on one rank, so the next micro-batch follows the
gradient of the present one from rank to rank. Each rank holds one micro-batch at a time, the possible minimum, and the
weights of two stages. Gradients are reduced once, at the end.

A micro-batch enters every min(t_f, t_b) + p max(t_f, t_b) seconds. With t_b = 2 t_f and many micro-batches a rank is
idle for (p - 1) / (p + 1 / 2) of the time, the ratio in Chimera's comparison (arXiv:2107.06925, table 2).
"""

from __future__ import annotations

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders._spelling import replica_letters, spelled
from pipesched.schedules.common import positive


def gems(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build GEMS; replicas reduce their gradients before they step (with p odd, the middle stage has none).

    Raises:
        ScheduleError: One of the two replicas would have no micro-batch, or both would be on one rank.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    if p < 2 or m < 2:
        raise ScheduleError(
            f"gems: got {p} ranks and {m} micro-batches, expected at least 2 of each, for two replicas of the model; "
            f"try {max(p, 2)} and {max(m, 2)}"
        )
    turns = "FBfb" * (m // 2) + "FB" * (m % 2)
    rows = [turns + ("RrSs" if rank < p - 1 - rank else "S" if rank == p - 1 - rank else "rRsS") for rank in range(p)]
    letters = replica_letters(p, range(0, m, 2), range(1, m, 2))
    return make_schedule("gems", p, m, spelled(rows, letters))
