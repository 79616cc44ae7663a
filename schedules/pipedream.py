"""PipeDream, asynchronous 1F1B with weight stashing: arXiv:1806.03377, sections 3.2 and 3.3.

p = 3 ranks; F2@1 reads the weights after one optimizer step, a Step follows every B:

    rank 0  F0@0 F1@0 F2@0 ..   ..   B0@0 F3@1 B1@0 F4@2 B2@0
    rank 1  ..   F0@0 F1@0 ..   B0@0 F2@1 B1@0 F3@2 B2@1 F4@3
    rank 2  ..   ..   F0@0 B0@0 F1@1 B1@1 F2@2 B2@2 F3@3 B3@3

No flush. F of micro-batch i reads the newest weights of its stage, version max(0, i - w) with w = p - 1 - k
forwards ahead on rank k; B of i reads the same version again, which is kept (stashed) until then: w + 1 versions
live on rank k. As one recurrence, W_k the weights of stage k: W(t+1) = W(t) - lr grad f(W_0(t-p+1), ..., W_{p-1}(t)).
"""

from __future__ import annotations

from schedules.one_f_one_b import alternate
from schedules.op import Op, Phase, Step
from schedules.schedule import Schedule, backward, forward, make_schedule, positive


def pipedream(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build `num_microbatches` of asynchronous training, each with a Step of its own on every stage."""
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    rows: list[list[Op]] = []
    for rank in range(num_ranks):
        ahead = num_ranks - 1 - rank
        forwards = [forward(rank, i, max(0, i - ahead)) for i in range(num_microbatches)]
        backwards = [backward(rank, i, max(0, i - ahead)) for i in range(num_microbatches)]
        row: list[Op] = []
        for op in alternate(forwards, backwards, min(num_microbatches, ahead)):
            row.append(op)
            if op.phase is Phase.BACKWARD:
                row.append(Step(rank))
        rows.append(row)
    return make_schedule("pipedream", num_ranks, num_microbatches, rows)
