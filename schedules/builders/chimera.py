"""Chimera, two pipelines in opposite directions: arXiv:2107.06925, section 3.

p = 4 ranks, m = 4 micro-batches: 0 and 1 go down, with stage k on rank k; 2 and 3 go up, with stage k on rank 3 - k.
Every stage has a replica on two ranks. Cells show stage, op and micro-batch (1F0):

    rank 0  0F0 0F1 ..  3F2 3B2 3F3 3B3 0B0 ..  0B1
    rank 1  ..  1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1 ..
    rank 2  ..  1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3 ..
    rank 3  0F2 0F3 ..  3F0 3B0 3F1 3B1 0B2 ..  0B3

A micro-batch crosses a stage in every slot, there and back, and in each direction one enters in every other slot. With
p even, the two directions take turns on every rank and never meet. Units of p micro-batches follow one another every
2 p slots: the forwards of a unit are in the gaps of the backwards of the unit before (direct concatenation in the
paper).

If B takes as long as F, a rank is idle for p - 2 slots, with any number of units: bubble_fraction
(p - 2) / (2 m + p - 2). If B takes longer than F, a gap does not hold the unit exactly, and a rank is idle for
(p - 2)(t_f + m / p (t_b - t_f)). For t_b = 2 t_f and one unit this is the paper's (p - 2) / (3 m / 2 + p - 2). The
ranks in the middle hold p micro-batches, the outermost p / 2 + 1, each in one of the rank's two stages.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders._spelling import cross, replica_letters, spelled
from pipesched.schedules.common import positive


def chimera(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build Chimera; both replicas of every stage reduce their gradients before they step.

    Raises:
        ScheduleError: The number of ranks is odd, or the micro-batches are no multiple of it.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    if p % 2:
        near = f"{p + 1}" if p == 1 else f"{p - 1} or {p + 1}"
        raise ScheduleError(f"chimera: got {p} ranks, expected an even number, for two directions; try {near}")
    if m % p:
        near = f"{p}" if m < p else f"{m - m % p} or {m - m % p + p}"
        raise ScheduleError(
            f"chimera: got {m} micro-batches for {p} ranks, expected a multiple of {p}, the size of a unit; try {near}"
        )
    rows: list[str] = []
    for rank in range(p):
        slots = [""] * (2 * (m + p))
        for unit in range(0, m, p):
            cross(slots, "FB", rank, p, start=2 * unit, num_microbatches=p // 2)
            cross(slots, "fb", p - 1 - rank, p, start=2 * unit, num_microbatches=p // 2)
        rows.append("".join(slots) + ("RrSs" if rank < p // 2 else "rRsS"))
    going_down = [i for i in range(m) if i % p < p // 2]
    letters = replica_letters(p, going_down, [i + p // 2 for i in going_down])
    return make_schedule("chimera", p, m, spelled(rows, letters))
