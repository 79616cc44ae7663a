"""1F1B with a flush (PipeDream-flush, DAPPLE): arXiv:2006.09503, section 2.2.

    rank 0  F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
    rank 1  .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
    rank 2  .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..

Rank k runs min(m, p - 1 - k) forwards ahead, then alternates F and B, then drains. At most
min(m, p - k) micro-batches are in flight on rank k, and the batch takes the time of GPipe.

Advance forward propagation (AvgPipe, PPoPP 2023, section 4.2 and Algorithm 1) lets every rank but the last run
`advance` more forwards ahead, so that a slow link no longer starves the ranks behind it:

    1f1b, p = 2, a transfer takes as long as F         advance = 1
    rank 0  F0 F1 .. .. .. B0 F2 B1 F3 .. .. B2 .. B3  rank 0  F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
    rank 1  .. .. F0 B0 F1 B1 .. .. F2 B2 F3 B3 .. ..  rank 1  .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
"""

from __future__ import annotations

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders._spelling import rank_letters, spelled
from pipesched.schedules.common import positive


def alternating(num_forwards: int, warmup: int, back: str = "B") -> str:
    """Return `warmup` forwards, then one F and one `back` in turn, then the remaining `back`."""
    return "F" * warmup + ("F" + back) * (num_forwards - warmup) + back * warmup


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build 1F1B; its makespan is (m + p - 1)(t_f + t_b) on equal stages, with links that take no time."""
    return _build("1f1b", num_ranks, num_microbatches, advance=0)


def one_f_one_b_afp(num_ranks: int, num_microbatches: int, advance: int = 1) -> Schedule:
    """Build 1F1B with advance forward propagation: `advance` 0 is 1F1B, m or more is GPipe's order of forwards."""
    require_advance(advance)
    return _build("1f1b_afp", num_ranks, num_microbatches, advance)


def pipeline_rows(num_ranks: int, num_microbatches: int, advance: int) -> list[str]:
    """Return the letters of the ranks of one pipeline, `advance` forwards further ahead than 1F1B."""
    ahead = [*(min(num_microbatches, num_ranks - 1 - rank + advance) for rank in range(num_ranks - 1)), 0]
    return [alternating(num_microbatches, warmup) + "S" for warmup in ahead]


def require_advance(advance: int) -> None:
    """Refuse an invalid number of forwards.

    Raises:
        ScheduleError: The number is below 0 or not an integer.
    """
    if not isinstance(advance, int) or isinstance(advance, bool) or advance < 0:
        raise ScheduleError(f"advance: got {advance!r}, expected an integer of at least 0; try 1")


def _build(name: str, num_ranks: int, num_microbatches: int, advance: int) -> Schedule:
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    rows = pipeline_rows(num_ranks, num_microbatches, advance)
    return make_schedule(name, num_ranks, num_microbatches, spelled(rows, rank_letters(num_ranks)))
