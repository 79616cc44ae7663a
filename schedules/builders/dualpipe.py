"""DualPipe, from both ends at once, and DualPipeV, the same in a V: DeepSeek-V3, arXiv:2412.19437, section 3.2.1.

DualPipe, p = 4 ranks, m = 8: micro-batches 0 to 3 enter at rank 0, with stage k on rank k; 4 to 7 enter at rank 3,
with stage k on rank 3 - k. So every rank holds two stages, and every stage has two replicas. ``F3& B5`` overlap:

    rank 0  F0  F1  F2  F4  I4  W4  F5  F3& B5  F6& B0  B6  F7& B1  B7  I2  W2  I3  W3
    rank 1  ..  F0  F4  F1  F5  F2  B4  F6& B0  F3& B5  F7& B1  B6  B2  I7  I3  W7  W3
    rank 2  ..  F4  F0  F5  F1  F6  B0  F2& B4  F7& B1  F3& B5  B2  B6  I3  I7  W3  W7
    rank 3  F4  F5  F6  F0  I0  W0  F1  F7& B1  F2& B4  B2  F3& B5  B3  I6  W6  I7  W7

DualPipeV, p = 2 ranks, m = 4 micro-batches, stages k and 3 - k on rank k, written as stage, op and micro-batch (1F0):

    rank 0  0F0  0F1  0F2  3F0  3I0  3W0  3F1  0F3& 3B1  3F2& 0B0  3B2  3F3& 0B1  3B3  0I2  0W2  0I3  0W3
    rank 1  ..   1F0  2F0  1F1  2F1  1F2  2B0  2F2& 1B0  1F3& 2B1  2F3& 1B1  2B2  1B2  2I3  1I3  2W3  1W3

Rank k of DualPipeV on p / 2 ranks does the work of ranks k and p - 1 - k of DualPipe on p ranks: one of them for
micro-batches that enter at its own end, the other for micro-batches from the other end. One function makes both.

Where t_F = t_I >= t_W and an overlapped pair takes t_FB, the largest idle time of a rank is
(p/2 - 1)(t_FB + t_B - 3 t_W). Here p is the number of ranks of DualPipe, or of stages of DualPipeV. On every rank
p + 1 micro-batches are in flight, each in one of the rank's two stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders._spelling import Letter, spelled
from pipesched.schedules.columns import OpColumns
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Phase, Reduce, Step

_INPUTS = str.maketrans("Bb", "Ii")
_WEIGHTS = str.maketrans("Ii", "Ww")


def dualpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build DualPipe; both replicas of every stage reduce their gradients before they step.

    Raises:
        ScheduleError: The number of ranks or of micro-batches is odd, or there are fewer than two micro-batches per
            rank.
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
    places = [min(rank, p - 1 - rank) for rank in range(p)]
    firsts = [0 if rank < p // 2 else m // 2 for rank in range(p)]
    columns = _columns(places, firsts, [m // 2 - first for first in firsts], p // 2, m // 2, "RrSs")
    return make_schedule("dualpipe", p, m, columns)


def dualpipe_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build DualPipeV: two stages per rank, as PyTorch's ``ScheduleDualPipeV``.

    Raises:
        ScheduleError: The schedule has fewer micro-batches than stages.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    if m < 2 * p:
        raise ScheduleError(
            f"dualpipe_v: got {m} micro-batches, expected at least {2 * p}, the number of stages, so that every rank "
            f"has pairs to overlap; try {2 * p}"
        )
    return make_schedule("dualpipe_v", 2 * p, m, _columns(range(p), [0] * p, [0] * p, p, m, "Ss"))


def _columns(
    places: Sequence[int], firsts: Sequence[int], other_firsts: Sequence[int], p: int, m: int, end: str
) -> OpColumns:
    """Return the lists of ranks in a V of p ranks with m micro-batches per chunk.

    Args:
        places: For each rank, its place in the V: the first of its two stages for micro-batches from its own end.
        firsts: For each rank, the first micro-batch that enters at the rank's own end.
        other_firsts: For each rank, the first micro-batch that enters at the other end.
        p: Number of places.
        m: Micro-batches that enter at each end.
        end: Letters of the ops after the computations.
    """
    rows, late = zip(*(_row(p, place, m) for place in places), strict=True)
    others = [2 * p - 1 - place for place in places]
    letters: dict[str, Letter] = {}
    for name, stages, first in ((str.upper, places, firsts), (str.lower, others, other_firsts)):
        num_late = [inputs.count(name("i")) for inputs in late]
        late_firsts = [start + m - count for start, count in zip(first, num_late, strict=True)]
        letters |= {
            name("f"): Letter(Phase.FORWARD, stages, firsts=first),
            name("g"): Letter(Phase.FORWARD, stages, turns_of=name("f"), is_overlapped=True),
            name("b"): Letter(Phase.BACKWARD, stages, firsts=first),
            name("i"): Letter(Phase.BACKWARD_INPUT, stages, turns_of=name("b")),
            name("v"): Letter(Phase.BACKWARD_WEIGHT, stages, firsts=first),
            name("w"): Letter(Phase.BACKWARD_WEIGHT, stages, firsts=late_firsts),
            name("r"): Letter(Reduce, stages),
            name("s"): Letter(Step, stages),
        }
    return spelled([row + end for row in rows], letters)


def _row(p: int, rank: int, m: int) -> tuple[str, str]:
    """Return the letters of `rank` in a V of p ranks with m micro-batches per chunk: eight phases.

    Capitals are of chunk 0, where micro-batches enter. G is an F that overlaps the next op, V an early W.

    Returns:
        The letters, and the letters of I whose W come later.
    """
    behind = p - 1 - rank
    warmup = "F" * (2 * behind) + "Ff" * (rank + 1)  # 1: F of chunk 0 alone; 2: F of both in turn
    turn = "ivf" * behind  # 3: chunk 1 turns round; W fills the wait for its next F
    first = "GbgB" if behind else "FbgB"  # 4: the steady phase; in the middle as in DeepSeek's own
    steady = first + "GbgB" * (m - 2 * p + rank)
    forwards = "bgB" * behind  # 5: no F of chunk 0 is left
    backwards = "bB" * (rank + 1)  # 6: B of both in turn; in the second half I, its W comes later
    inputs = backwards[rank + 1 :].translate(_INPUTS)
    late = inputs + "I" * behind
    weights = late.translate(_WEIGHTS)
    waiting = "".join(f"{weight}I" for weight in weights[:behind])  # 7: W fills the wait for the next gradient
    rest = weights[behind:]  # 8: the remaining W
    return warmup + turn + steady + forwards + backwards[: rank + 1] + inputs + waiting + rest, late
