"""Interleaved zero bubble, as PyTorch 2.13's ScheduleInterleavedZeroBubble orders it: ZB-H1 over several chunks.

p = 2 ranks, v = 2 chunks, m = 4 micro-batches; stage = chunk * p + rank, written as stage, op and micro-batch (1F0):

    rank 0  0F0 0F1 2F0 2F1 ..  2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3
    rank 1  ..  1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3

Rounds and chunks are the same as in `interleaved`. Rank k runs min(v m, (v - 1) round + p - 1 - k) forwards ahead, then
alternates F and I; from the (k + 1)-th I on, the oldest W follows each I, and the others come at the end
(arXiv:2401.10241, section 2.1, with one chunk: `zb_h1`). In flight, from F to W: up to (v - 1) round + p on every rank.

The optimizer steps after the last W; there is no validation after the step, as in `zero_bubble`.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders._spelling import Letter, chunk_steps, spelled
from pipesched.schedules.builders.interleaved import chunk_order, round_size
from pipesched.schedules.builders.one_f_one_b import alternating
from pipesched.schedules.builders.zero_bubble import with_weights
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Phase


def interleaved_zb(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Build interleaved zero bubble.

    Its bubble is (p - 1)(t_f + t_i - t_w) / v if m is a multiple of p.

    Raises:
        ScheduleError: A count is below 1, or m is no multiple of the number of rounds.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    p, m, v = num_ranks, num_microbatches, num_chunks
    per_round = round_size("interleaved_zb", p, m)
    ahead = [min(m * v, (v - 1) * per_round + p - 1 - rank) for rank in range(p)]
    rows = [with_weights(alternating(m * v, warmup, "I"), rank) + "S" * v for rank, warmup in enumerate(ahead)]
    chunks, microbatches = chunk_order(m, v, per_round)
    back = [(v - 1 - chunk) * p for chunk in chunks]
    letters = {
        "F": Letter(Phase.FORWARD, range(p), microbatches, [chunk * p for chunk in chunks]),
        "I": Letter(Phase.BACKWARD_INPUT, range(p), microbatches, back),
        "W": Letter(Phase.BACKWARD_WEIGHT, range(p), microbatches, back),
    }
    return make_schedule("interleaved_zb", p * v, m, spelled(rows, letters | chunk_steps(p, v)))
