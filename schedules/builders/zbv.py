"""ZBV, zero bubble in a V: arXiv:2401.10241, section 6; in the order of PyTorch's ``ScheduleZBVZeroBubble``.

p = 2 ranks, m = 3 micro-batches, stages k and 3 - k on rank k, written as stage, op and micro-batch (1F0):

    rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 ..
    rank 1  ..  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

A micro-batch ends on the rank where it started, so the first rank computes the first gradient.
The order is made for equal times of F, I and W and for at least 2 p - 1 micro-batches. Then no rank is idle between its
first op and its last, and no rank holds more than 2 p chunks (p micro-batches) from F to W. With fewer micro-batches
the order is the same without the missing ones.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders._spelling import first_turns, spelled, v_letters
from pipesched.schedules.common import positive


def zbv(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build ZBV; it takes 6 m + p - 1 chunk times if F, I and W take equal time and m is at least 2 p - 1."""
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    full = [_row(p, max(m, 2 * p - 1), rank) for rank in range(p)]
    rows = [(row if m >= 2 * p - 1 else first_turns(row, m)) + "Ss" for row in full]
    return make_schedule("zbv", 2 * p, m, spelled(rows, v_letters(p)))


def _row(p: int, m: int, rank: int) -> str:
    """Return the letters of `rank`: F, I, W of its first chunk (way down), f, i, w of its second chunk (way up)."""
    warmup = "F" * (2 * (p - rank) - 1) + "fF" * rank + "fiw" * (p - rank)
    steady = "FIWfiw" * (m - 2 * p + 1 + rank) + "IWfiw" * (p - 1 - rank)
    cooldown = "Ii" * rank + "IW" * (p - rank) + "w" * rank + "W" * rank
    return warmup + steady + cooldown
