"""DualPipe, from both ends at once, and DualPipeV, the same in a V: DeepSeek-V3, arXiv:2412.19437, section 3.2.1.

DualPipe, p = 4 ranks, m = 8: micro-batches 0 to 3 enter at rank 0, with stage k on rank k; 4 to 7 enter at rank 3,
with stage k on rank 3 - k. So every rank holds two stages, and every stage has two replicas. ``F3& B5`` overlap:

    rank 0  F0  F1  F2  F4  I4  W4  F5  F3& B5  F6& B0  B6  F7& B1  B7  I2  W2  I3  W3
    rank 1  ..  F0  F4  F1  F5  F2  B4  F6& B0  F3& B5  F7& B1  B6  B2  I7  I3  W7  W3
    rank 2  ..  F4  F0  F5  F1  F6  B0  F2& B4  F7& B1  F3& B5  B2  B6  I3  I7  W3  W7
    rank 3  F4  F5  F6  F0  I0  W0  F1  F7& B1  F2& B4  B2  F3& B5  B3  I6  W6  I7  W7

DualPipeV, p = 2 ranks, m = 4 micro-batches, stages k and 3 - k on rank k, written stage F micro-batch:

    rank 0  0F0  0F1  0F2  3F0  3I0  3W0  3F1  0F3& 3B1  3F2& 0B0  3B2  3F3& 0B1  3B3  0I2  0W2  0I3  0W3
    rank 1  ..   1F0  2F0  1F1  2F1  1F2  2B0  2F2& 1B0  1F3& 2B1  2F3& 1B1  2B2  1B2  2I3  1I3  2W3  1W3

Rank k of DualPipeV on p / 2 ranks does just what ranks k and p - 1 - k of DualPipe on p ranks do, each for the
micro-batches that enter at its own end and for those that enter at the other: one order makes both.

Where t_F = t_I >= t_W and an overlapped pair takes t_FB, the rank that is idle longest is so for
(p/2 - 1)(t_FB + t_B - 3 t_W), p being the ranks of DualPipe or the stages of DualPipeV; on every rank p + 1
micro-batches are in flight, each in one of its two stages.
"""

from __future__ import annotations

from collections import deque
from typing import final

from pipesched.schedules import (
    Compute,
    Op,
    Overlap,
    Reduce,
    Schedule,
    ScheduleError,
    Step,
    backward,
    backward_input,
    backward_weight,
    forward,
    make_schedule,
    positive,
)


def dualpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build DualPipe; both replicas of every stage reduce their gradients before they step.

    Raises:
        ScheduleError: The ranks or the micro-batches are not even, or these are fewer than twice as many as the ranks.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    faults = []
    if p % 2:
        faults.append(f"got {p} ranks, expected an even number, half of them for each end; try {p + 1}")
    if m % 2 or m < 2 * p:
        faults.append(
            f"got {m} micro-batches, expected an even number, half for each end, and at least {2 * p}, so that "
            f"every rank has pairs to overlap; try {max(2 * p, m + m % 2)}"
        )
    if faults:
        raise ScheduleError("dualpipe: " + "; ".join(faults))
    entering = (range(m // 2), range(m // 2, m))
    rows: list[list[Op]] = []
    for rank in range(p):
        near = min(rank, p - 1 - rank)
        stages = (near, p - 1 - near)
        row = _Row(stages, entering if rank == near else entering[::-1])
        rows.append([*_filled(row, p // 2, near, m // 2), *map(Reduce, stages), *map(Step, stages)])
    return make_schedule("dualpipe", p, m, rows)


def dualpipe_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build DualPipeV: two stages per rank, as PyTorch's ``ScheduleDualPipeV``.

    Raises:
        ScheduleError: There are fewer micro-batches than stages.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    if m < 2 * p:
        raise ScheduleError(
            f"dualpipe_v: got {m} micro-batches, expected at least {2 * p}, as many as stages, so that every rank has "
            f"pairs to overlap; try {2 * p}"
        )
    rows: list[list[Op]] = []
    for rank in range(p):
        stages = (rank, 2 * p - 1 - rank)
        rows.append([*_filled(_Row(stages, (range(m), range(m))), p, rank, m), *map(Step, stages)])
    return make_schedule("dualpipe_v", 2 * p, m, rows)


@final
class _Row:
    """The list of one rank as it grows, over its two chunks: 0, near to where its micro-batches enter, and 1."""

    def __init__(self, stages: tuple[int, int], microbatches: tuple[range, range]) -> None:
        chunks = list(zip(stages, microbatches, strict=True))
        self.ops: list[Op] = []
        self._forwards = [iter([forward(stage, i) for i in own]) for stage, own in chunks]
        self._backwards = [iter([backward(stage, i) for i in own]) for stage, own in chunks]
        self._weights: deque[Compute] = deque()

    def f(self, chunk: int) -> None:
        """Add F of the chunk's next micro-batch."""
        self.ops.append(next(self._forwards[chunk]))

    def b(self, chunk: int) -> None:
        """Add B of the chunk's next micro-batch."""
        self.ops.append(next(self._backwards[chunk]))

    def f_and_b(self, ahead: int, back: int) -> None:
        """Add F of one chunk overlapped with B of the other."""
        self.ops.append(Overlap(next(self._forwards[ahead]), next(self._backwards[back])))

    def i(self, chunk: int) -> None:
        """Add I of the chunk's next micro-batch; its W is due."""
        whole = next(self._backwards[chunk])
        self.ops.append(backward_input(whole.stage, whole.microbatch))
        self._weights.append(backward_weight(whole.stage, whole.microbatch))

    def w(self) -> None:
        """Add the W that has been due longest."""
        self.ops.append(self._weights.popleft())


def _filled(row: _Row, p: int, rank: int, m: int) -> list[Op]:
    """Return the computations of `rank` in a V of p ranks with m micro-batches per chunk: eight phases."""
    behind = p - 1 - rank
    for _ in range(2 * behind):  # 1: F of chunk 0 alone
        row.f(0)
    for _ in range(rank + 1):  # 2: F of both in turn
        row.f(0)
        row.f(1)
    for _ in range(behind):  # 3: chunk 1 turns round; W fills the wait for its next F
        row.i(1)
        row.w()
        row.f(1)
    for turn in range(m - 2 * p + rank + 1):  # 4: the steady phase
        if turn == 0 and behind == 0:  # in the middle the first pair is not overlapped, as in DeepSeek's own
            row.f(0)
            row.b(1)
        else:
            row.f_and_b(0, 1)
        row.f_and_b(1, 0)
    for _ in range(behind):  # 5: no F of chunk 0 is left
        row.b(1)
        row.f_and_b(1, 0)
    for turn in range(2 * (rank + 1)):  # 6: B of both in turn; in the second half I, its W comes later
        (row.b if turn <= rank else row.i)(1 - turn % 2)
    for _ in range(behind):  # 7: W fills the wait for the next gradient
        row.w()
        row.i(0)
    for _ in range(rank + 1):  # 8: what is still due
        row.w()
    return row.ops
