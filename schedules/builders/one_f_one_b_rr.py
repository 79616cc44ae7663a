"""1F1B-RR, PipeDream with replicated stages: arXiv:1806.03377, section 3.2.

Stage s has replicas[s] ranks, numbered stage by stage; F and B of micro-batch i run on replica i mod replicas[s]. If
`before` of R ranks hold earlier stages, a replica runs floor((R - 1 - before) / replicas[s]) of its own forwards ahead.
So NOAM = ceil(R / replicas[0]) micro-batches enter each replica of the first stage before its first backward.
replicas = (2, 1):

    rank 0  F0@0 F2@0 ..   B0@0 F4@1 ..   ..   B2@0 F6@2 ..   ..   B4@1
    rank 1  F1@0 F3@0 ..   ..   ..   B1@0 F5@1 ..   ..   B3@0 F7@2 ..
    rank 2  ..   F0@0 B0@0 F1@1 B1@1 F2@2 B2@2 F3@3 B3@3 F4@4 B4@4 F5@5

A round is one micro-batch for every replica of a stage. After its B of a round, a replica averages gradients with the
others (Reduce) and steps. So all replicas of a stage have the same weights, and versions count rounds. As in
PipeDream, F reads the newest version, and B reads the version of its F.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import lcm

from pipesched.schedules import Schedule, ScheduleError, make_generated_schedule
from pipesched.schedules.builders._held_builder import held_builder
from pipesched.schedules.builders.pipedream import without_flush
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Op, backward, forward


def generated_one_f_one_b_rr(num_ranks: int, num_microbatches: int, replicas: Sequence[int] | None = None) -> Schedule:
    """Build a run over ``len(replicas)`` stages.

    Args:
        replicas: Number of ranks of each stage, `num_ranks` together (default: two for the first stage and one for
            every other; with fewer than three ranks, one for each).

    Raises:
        ScheduleError: A count is below 1, the replicas do not add up to the ranks, or the last round is not full.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    counts = _default(num_ranks) if replicas is None else tuple(replicas)
    _check(counts, num_ranks, num_microbatches)
    before = (0, *accumulate(counts))
    homes = [tuple(range(start, start + count)) for start, count in zip(before, counts, strict=False)]

    def ops(stage: int, replica: int) -> Iterator[Op]:
        count = counts[stage]
        warmup = (num_ranks - 1 - before[stage]) // count
        own = range(replica, num_microbatches, count)
        forwards = (forward(stage, i, max(0, i // count - warmup)) for i in own)
        backwards = (backward(stage, i, max(0, i // count - warmup)) for i in own)
        return without_flush(forwards, backwards, warmup, is_replicated=count > 1)

    rank_ops = [partial(ops, stage, replica) for stage, count in enumerate(counts) for replica in range(count)]
    return make_generated_schedule("1f1b_rr", len(counts), num_microbatches, rank_ops, homes)


_SHOWN = 60
"""Number of characters of the replicas in a message."""

one_f_one_b_rr = held_builder(generated_one_f_one_b_rr)


def _default(num_ranks: int) -> tuple[int, ...]:
    return (1,) * num_ranks if num_ranks < 3 else (2, *(1,) * (num_ranks - 2))


def _check(counts: Sequence[int], num_ranks: int, num_microbatches: int) -> None:
    text = ":".join(map(str, counts))
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."
    if not counts or any(not isinstance(count, int) or isinstance(count, bool) or count < 1 for count in counts):
        raise ScheduleError(
            f"1f1b_rr: got replicas {shown or 'of no stage'}, expected at least 1 of each stage; try 2:1"
        )
    if sum(counts) != num_ranks:
        raise ScheduleError(
            f"1f1b_rr: got replicas {shown}, {sum(counts)} together, expected {num_ranks}, one per rank; "
            f"try replicas={':'.join(map(str, _default(num_ranks)))}"
        )
    per_round = lcm(*counts)
    if num_microbatches % per_round:
        above = num_microbatches + per_round - num_microbatches % per_round
        near = f"{above - per_round} or {above}" if above > per_round else f"{above}"
        raise ScheduleError(
            f"1f1b_rr: got {num_microbatches} micro-batches for replicas {shown}, expected a multiple of {per_round}, "
            f"as every replica has one in every round; try {near}"
        )
