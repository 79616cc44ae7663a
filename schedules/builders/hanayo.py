"""Hanayo, waves over the ranks: SC 2023, arXiv:2308.15762.

p = 2 ranks, w = 2 waves, m = 2 micro-batches: stages go down the ranks and up again, w times, so that a rank holds 2
w of them. Cells show stage, op and micro-batch (1F0):

    rank 0  0F0 0F1 ..  3F0 4F0 3F1 4F1 7F0 7B0 7F1 7B1 4B0 3B0 4B1 3B1 0B0 ..  0B1
    rank 1  ..  1F0 2F0 1F1 2F1 5F0 6F0 5F1 6F1 6B0 5B0 6B1 5B1 2B0 1B0 2B1 1B1 ..

So every rank has work from both directions, as with Chimera's two pipelines, but without replicas. The order follows
Chimera's rule: a micro-batch crosses a stage in every slot, there and back, one enters in every other slot, and rounds
of p micro-batches follow one another without a gap. A greedy order, backward first, with at most p micro-batches in the
pipeline, takes the same time.

If B takes as long as F, a rank is idle for 2 (p - 1) chunk times, with any number of rounds: bubble_overhead
(p - 1) / (2 w m), as with 2 w interleaved chunks. With a longer B the rounds leave gaps, and a rank is idle for
2 (p - 1)(t_f + m / p (t_b - t_f)), where t_f and t_b are of one chunk. A rank holds min(m, p) micro-batches at most.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders._spelling import Letter, LetterKind, cross, spelled
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Phase, Step


def hanayo(num_ranks: int, num_microbatches: int, waves: int = 2) -> Schedule:
    """Build Hanayo with 2 `waves` chunks per rank.

    Raises:
        ScheduleError: A count is below 1.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, waves=waves)
    p, m, num_stages = num_ranks, num_microbatches, 2 * waves * num_ranks
    stages = [  # of each rank, in the order in which micro-batches come to them
        [stage for turn in range(0, num_stages, 2 * p) for stage in (turn + rank, turn + 2 * p - 1 - rank)]
        for rank in range(p)
    ]
    letters: dict[str, Letter] = {}
    names = [f"{chr(3 * chunk)}{chr(3 * chunk + 1)}{chr(3 * chunk + 2)}" for chunk in range(2 * waves)]
    for name, own in zip(names, zip(*stages, strict=True), strict=True):
        kinds: tuple[LetterKind, ...] = (Phase.FORWARD, Phase.BACKWARD, Step)
        letters |= {letter: Letter(kind, own) for letter, kind in zip(name, kinds, strict=True)}
    rows: list[str] = []
    for rank in range(p):
        slots = [""] * (2 * (num_stages * (1 + (m - 1) // p) + p))
        for start in range(0, m, p):
            for name, stage in zip(names, stages[rank], strict=True):
                cross(slots, name[:2], stage, num_stages, 2 * num_stages * (start // p), min(p, m - start))
        rows.append("".join(slots) + "".join(name[2] for name in names))
    return make_schedule("hanayo", num_stages, m, spelled(rows, letters))
