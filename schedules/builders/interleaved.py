"""Interleaved 1F1B, several chunks of the model per rank: arXiv:2104.04473, section 2.2 (Megatron-LM).

p = 2 ranks, v = 2 chunks, m = 4 micro-batches; stage = chunk * p + rank, written as stage, op and micro-batch (1F0):

    rank 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ..  2B2 ..  2B3 0B2 0B3
    rank 1  ..  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 ..

Micro-batches go in rounds: a round passes through all chunks before the next begins. Where m is not a multiple
of p, PyTorch's rule holds: max(1, m // p) rounds of equal size, so m must be a multiple of the number of rounds.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders._spelling import Letter, chunk_steps, spelled
from pipesched.schedules.builders.one_f_one_b import alternating
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Phase


def interleaved(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Build interleaved 1F1B; its bubble_overhead is (p - 1) / (v m) on equal stages with m a multiple of p.

    Raises:
        ScheduleError: A count is below 1, or m is no multiple of the number of rounds.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    p, m, v = num_ranks, num_microbatches, num_chunks
    per_round = round_size("interleaved", p, m)
    ahead = [min(m * v, (v - 1) * per_round + 2 * (p - 1 - rank)) for rank in range(p)]
    rows = [alternating(m * v, warmup) + "S" * v for warmup in ahead]
    chunks, microbatches = chunk_order(m, v, per_round)
    letters = {
        "F": Letter(Phase.FORWARD, range(p), microbatches, [chunk * p for chunk in chunks]),
        "B": Letter(Phase.BACKWARD, range(p), microbatches, [(v - 1 - chunk) * p for chunk in chunks]),
    }
    return make_schedule("interleaved", p * v, m, spelled(rows, letters | chunk_steps(p, v)))


def round_size(name: str, num_ranks: int, num_microbatches: int) -> int:
    """Return how many micro-batches pass through all chunks of schedule `name` before the next ones begin.

    Raises:
        ScheduleError: The rounds would not be of equal size.
    """
    num_rounds = max(1, num_microbatches // num_ranks)
    if num_microbatches % num_rounds:
        below = num_microbatches - num_microbatches % num_rounds
        above = min(below + num_rounds, (num_rounds + 1) * num_ranks)
        raise ScheduleError(
            f"{name}: got {num_microbatches} micro-batches for {num_ranks} ranks, expected a multiple of {num_rounds}, "
            f"the number of rounds; try {below} or {above}"
        )
    return num_microbatches // num_rounds


def chunk_order(num_microbatches: int, num_chunks: int, per_round: int) -> tuple[list[int], list[int]]:
    """Return the chunks and the micro-batches in the order of the forwards: round by round, chunk by chunk."""
    one_round = [chunk for chunk in range(num_chunks) for _ in range(per_round)]
    rounds = [range(start, start + per_round) for start in range(0, num_microbatches, per_round)]
    return one_round * len(rounds), [i for microbatches in rounds for _ in range(num_chunks) for i in microbatches]
