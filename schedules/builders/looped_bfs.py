"""Looped breadth-first (PyTorch's ScheduleLoopedBFS, WPipe's "GPipe grouping"): arXiv:2211.05953, section 4.

p = 2 ranks, v = 2 chunks, m = 3 micro-batches; stage = chunk * p + rank, written stage F micro-batch:

    rank 0  0F0 0F1 0F2 2F0 2F1 2F2 ..  ..  2B2 2B1 2B0 0B2 0B1 0B0
    rank 1  ..  1F0 1F1 1F2 3F0 3F1 3F2 3B2 3B1 3B0 1B2 1B1 1B0 ..

All micro-batches pass through one chunk before the next one begins; the backwards are the forwards reversed. The
bubble is GPipe's divided by v, and every rank holds all m micro-batches of its v chunks at the turn.
"""

from __future__ import annotations

from pipesched.schedules import Op, Schedule, Step, backward, forward, make_schedule, positive


def looped_bfs(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Build looped BFS: bubble_overhead (p - 1) / (v m) on equal stages with free links and m of at least p.

    Raises:
        ScheduleError: A count below 1.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    num_stages = num_ranks * num_chunks
    rows: list[list[Op]] = []
    for rank in range(num_ranks):
        stages = range(rank, num_stages, num_ranks)
        order = [(stage, i) for stage in stages for i in range(num_microbatches)]
        forwards = [forward(stage, i) for stage, i in order]
        backwards = [backward(stage, i) for stage, i in reversed(order)]
        rows.append([*forwards, *backwards, *(Step(stage) for stage in stages)])
    return make_schedule("looped_bfs", num_stages, num_microbatches, rows)
