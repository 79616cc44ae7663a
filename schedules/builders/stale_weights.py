"""Schedules without copies of weights: vanilla 1F1B, pipelined backpropagation, hybrid training.

Every op reads the newest weights.

Vanilla 1F1B is PipeDream's order without its stash: F of micro-batch i reads version max(0, i - w) with w = p - 1 - k,
and B reads version i, so the backward of a stage uses other weights than its forward.

Pipelined backpropagation with stale weights (arXiv:1912.12675, section 4.1) reads the same way and runs twice as far
ahead: worker k alternates F of i with B of i - 2 (p - 1 - k). In the paper's words, K = p - 1 pairs of registers make
forward stages j = 1..p, and the weights of stage j are 2 (K - j + 1) cycles old. p = 3:

    rank 0  F0@0 F1@0 F2@0 F3@0 F4@0 B0@0 F5@1 B1@1 F6@2 B2@2 F7@3 B3@3
    rank 1  ..   F0@0 F1@0 F2@0 B0@0 F3@1 B1@1 F4@2 B2@2 F5@3 B3@3 F6@4
    rank 2  ..   ..   F0@0 B0@0 F1@1 B1@1 F2@2 B2@2 F3@3 B3@3 F4@4 B4@4

Hybrid training (section 4.2) pipelines the first `pipelined` micro-batches, drains, and continues with one
micro-batch at a time. With pipelined = 2:

    rank 0  F0@0 F1@0 ..   ..   ..   B0@0 ..   B1@1 F2@2 ..   ..   ..   ..   B2@2 F3@3 ..   ..   ..   ..   B3@3
    rank 1  ..   F0@0 F1@0 ..   B0@0 ..   B1@1 ..   ..   F2@2 ..   ..   B2@2 ..   ..   F3@3 ..   ..   B3@3 ..
    rank 2  ..   ..   F0@0 B0@0 F1@1 B1@1 ..   ..   ..   ..   F2@2 B2@2 ..   ..   ..   ..   F3@3 B3@3 ..   ..
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pipesched.schedules import Schedule, ScheduleError, make_generated_schedule
from pipesched.schedules.builders._held_builder import held_builder
from pipesched.schedules.builders.pipedream import unflushed, without_flush
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Compute, Op, Phase, Step, backward, forward


def generated_vanilla_1f1b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build a run of 1F1B without a flush and without a stash, with a Step after each micro-batch."""
    return _newest("vanilla_1f1b", num_ranks, num_microbatches, slack=1)


def generated_stale_weights(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build a run of pipelined backpropagation, with 2 (p - 1 - k) + 1 micro-batches in flight on rank k."""
    return _newest("stale_weights", num_ranks, num_microbatches, slack=2)


def generated_hybrid(num_ranks: int, num_microbatches: int, pipelined: int | None = None) -> Schedule:
    """Build a run whose first `pipelined` micro-batches are pipelined (default: half of them, rounded up).

    Raises:
        ScheduleError: A count is below 1, or `pipelined` is below 0 or above the micro-batches.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    count = (num_microbatches + 1) // 2 if pipelined is None else pipelined
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= num_microbatches:
        raise ScheduleError(
            f"hybrid: got pipelined {count!r}, expected 0 to {num_microbatches}, the micro-batches of the run; "
            f"try pipelined={num_microbatches // 2}"
        )

    def ops(rank: int) -> Iterator[Op]:
        forwards = (forward(rank, i, max(0, i - 2 * (num_ranks - 1 - rank))) for i in range(count))
        yield from without_flush(forwards, (backward(rank, i, i) for i in range(count)), 2 * (num_ranks - 1 - rank))
        for i in range(count, num_microbatches):
            yield from (forward(rank, i, i), backward(rank, i, i), Step(rank))

    return make_generated_schedule(
        "hybrid", num_ranks, num_microbatches, [partial(ops, rank) for rank in range(num_ranks)]
    )


def _newest(name: str, num_ranks: int, num_microbatches: int, slack: int) -> Schedule:
    def forward(stage: int, i: int) -> Compute:
        return Compute(Phase.FORWARD, stage, i, max(0, i - slack * (num_ranks - 1 - stage)))

    def backward(stage: int, i: int) -> Compute:
        return Compute(Phase.BACKWARD, stage, i, i)

    return unflushed(name, num_ranks, num_microbatches, forward, backward, slack=slack)


vanilla_1f1b = held_builder(generated_vanilla_1f1b)
stale_weights = held_builder(generated_stale_weights)
hybrid = held_builder(generated_hybrid)
