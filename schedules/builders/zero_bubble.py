"""Zero bubble, the handcrafted schedules ZB-H1 and ZB-H2: arXiv:2401.10241, section 2 (their B is our I).

The backward is split: other ranks wait for I only, and W fills idle time. ZB-H1:

    rank 0  F0 F1 F2 .. .. I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1  .. F0 F1 .. I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2  .. .. F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

ZB-H2 runs further forwards ahead, which fill the time until the first I:

    rank 0  F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 .. ..
    rank 1  .. F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5 ..
    rank 2  .. .. F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5

With h = 1 or 2, rank k runs min(m, h (p - 1 - k)) forwards ahead, then alternates F and I. From the (h k + 1)-th I
on, the oldest W follows each I; the others come at the end. So every rank holds up to h (p - 1) + 1 micro-batches
from F to W: p as on 1F1B's first rank (H1), or 2 p - 1 (H2). On rank k, h k of these micro-batches wait only for W and
need less memory.

Zero bubble means that no rank is idle between its own first and last op. Each rank still begins one F after the rank
before it, so the makespan is longer than the work; only the next batch would fill that gap.

The optimizer steps after the last W of its stage. The paper steps first, validates afterwards and rolls back, to
avoid a synchronisation before the step. These lists have neither: no rank waits for another one before its Step.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders._spelling import rank_letters, spelled
from pipesched.schedules.builders.one_f_one_b import alternating
from pipesched.schedules.common import positive


def zb_h1(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build ZB-H1: idle time in the span of a rank is at most (p - 1)(t_f + t_i - t_w), in the memory of 1F1B."""
    return _build("zb_h1", num_ranks, num_microbatches, ahead=1)


def zb_h2(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build ZB-H2: for m >= 2 p - 1, idle time in the span of a rank is at most (p - 1)(t_f + t_i - 2 t_w)."""
    return _build("zb_h2", num_ranks, num_microbatches, ahead=2)


def with_weights(row: str, delay: int) -> str:
    """Return `row` with a W after each I from number `delay` on, and the remaining W at the end."""
    at, num_late = 0, 0
    while num_late < delay and (place := row.find("I", at)) >= 0:
        at, num_late = place + 1, num_late + 1
    return row[:at] + row[at:].replace("I", "IW") + "W" * num_late


def _build(name: str, num_ranks: int, num_microbatches: int, ahead: int) -> Schedule:
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    warmups = [min(m, ahead * (p - 1 - rank)) for rank in range(p)]
    rows = [with_weights(alternating(m, warmup, "I"), ahead * rank) + "S" for rank, warmup in enumerate(warmups)]
    return make_schedule(name, p, m, spelled(rows, rank_letters(p)))
