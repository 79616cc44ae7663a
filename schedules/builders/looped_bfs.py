"""Looped breadth-first (PyTorch's ScheduleLoopedBFS, WPipe's "GPipe grouping"): arXiv:2211.05953, section 4.

p = 2 ranks, v = 2 chunks, m = 3 micro-batches; stage = chunk * p + rank, written as stage, op and micro-batch (1F0):

    rank 0  0F0 0F1 0F2 2F0 2F1 2F2 ..  ..  2B2 2B1 2B0 0B2 0B1 0B0
    rank 1  ..  1F0 1F1 1F2 3F0 3F1 3F2 3B2 3B1 3B0 1B2 1B1 1B0 ..

All micro-batches pass through one chunk before the next one begins; the backwards are the forwards reversed. The
bubble is GPipe's divided by v, and every rank holds all m micro-batches of its v chunks when the backwards begin.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders._spelling import Letter, chunk_steps, spelled
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Phase


def looped_bfs(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Build looped BFS; on equal stages, its bubble_overhead is (p - 1) / (v m) if links take no time and m >= p.

    Raises:
        ScheduleError: A count is below 1.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    p, m, v = num_ranks, num_microbatches, num_chunks
    chunks = [chunk * p for chunk in range(v) for _ in range(m)]
    microbatches = [*range(m)] * v
    letters = {
        "F": Letter(Phase.FORWARD, range(p), microbatches, chunks),
        "B": Letter(Phase.BACKWARD, range(p), microbatches[::-1], chunks[::-1]),
    }
    rows = ["F" * (m * v) + "B" * (m * v) + "S" * v] * p
    return make_schedule("looped_bfs", p * v, m, spelled(rows, letters | chunk_steps(p, v)))
