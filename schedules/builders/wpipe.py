"""WPipe, double-grouped weight updates (2GW): ICLR 2022, section 3.2 and Figures 4 and 5.

2 p stages are on p ranks, stages k (group 0) and p + k (group 1) on rank k. A period of `accumulate` micro-batches, at
least p, ends with a Step of each stage. All ranks run one stream of pairs in the order of 1F1B, where rank k is
p - 1 - k forwards ahead. In the stream, the groups alternate after each `accumulate` micro-batches:

    first                    (F of group 0 of period 0, nothing)
    for t = 0, 1, ..         (F of group 1 of period t, B of group 1 of period t)
                             (F of group 0 of period t + 1, B of group 0 of period t)

So the forward of group 0 fills the gap that would separate two periods, and no rank idles once the pipeline is full.
p = 2, accumulate = 2, two periods; 2F0 is group 1's part of rank 0:

    rank 0  0F0@0 0F1@0 2F0@0 2F1@0 ..    2B0@0 0F2@0 2B1@0 0F3@0 0B0@0 2F2@1 0B1@0 2F3@1 2B2@1 ..    2B3@1 0B2@0 0B3@0
    rank 1  ..    1F0@0 1F1@0 3F0@0 3B0@0 3F1@0 3B1@0 1F2@0 1B0@0 1F3@0 1B1@0 3F2@1 3B2@1 3F3@1 3B3@1 1B2@0 1B3@0 ..

Group 1 reads its newest weights in F and B alike, one version. Group 0's F of period t + 1 comes before the Step of
period t and reads version t, its B the same: W(t+1) = W(t) - lr grad f(W(t-1)), two versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import tee

from pipesched.schedules import Schedule, make_generated_schedule
from pipesched.schedules.builders._held_builder import held_builder
from pipesched.schedules.builders.pipedream import update_period, without_flush
from pipesched.schedules.ops import Compute, Op, backward, forward


def generated_wpipe(num_ranks: int, num_microbatches: int, accumulate: int | None = None) -> Schedule:
    """Build a run of 2 p stages that step after each `accumulate` micro-batches (default: the number of ranks).

    Raises:
        ScheduleError: A count is below 1, a Step has fewer micro-batches than ranks, or the last period is not full.
    """
    period = update_period("wpipe", num_ranks, num_microbatches, accumulate)

    def ops(rank: int) -> Iterator[Op]:
        ahead, behind = tee(_pairs(rank, num_ranks, period, num_microbatches // period))
        forwards, backwards = (pair[0] for pair in ahead), (pair[1] for pair in behind)
        return without_flush(forwards, backwards, num_ranks - 1 - rank, period)

    rank_ops = [partial(ops, rank) for rank in range(num_ranks)]
    homes = [(stage % num_ranks,) for stage in range(2 * num_ranks)]
    return make_generated_schedule("wpipe", 2 * num_ranks, num_microbatches, rank_ops, homes)


def _pairs(rank: int, num_ranks: int, period: int, num_periods: int) -> Iterator[tuple[Compute | None, Compute | None]]:
    """Yield the stream of (forward, backward) of one rank; None stands for no forward or no backward."""
    first, second = rank, num_ranks + rank
    for i in range(period):
        yield forward(first, i), None
    for t in range(num_periods):
        for i in range(t * period, (t + 1) * period):
            yield forward(second, i, t), backward(second, i, t)
        for i in range(t * period, (t + 1) * period):
            is_last = t == num_periods - 1
            yield None if is_last else forward(first, i + period, t), backward(first, i, max(0, t - 1))


wpipe = held_builder(generated_wpipe)
