"""Recompute, a transform over any schedule: R right before every backward (GPipe, arXiv:1811.06965, section 2.3).

1F1B with p = 3 ranks and m = 3 micro-batches:

    rank 0  F0 F1 F2 R0 .. .. B0 R1 .. B1 R2 .. B2
    rank 1  .. F0 F1 R0 .. B0 F2 R1 B1 R2 .. B2 ..
    rank 2  .. .. F0 R0 B0 F1 R1 B1 F2 R2 B2 .. ..

F then keeps only the stage's input, and R rebuilds the rest: a rank holds one micro-batch in full, and of the others
in flight their inputs. R needs no gradient, so it runs while the gradient is on its way: a batch takes
(m + p - 1)(t_f + t_b) + m t_f, less than the (m + p - 1)(2 t_f + t_b) of a backward that recomputes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from schedules.op import Compute, Op, Phase, computes
from schedules.schedule import Schedule, ScheduleError


def recompute(schedule: Schedule, stages: Collection[int] | None = None) -> Schedule:
    """Return `schedule`, lowered or not, with an R before the B or I of every micro-batch that has none yet.

    R reads the weights that its F read, so that it rebuilds what F made whatever the backward reads. It comes as late
    as it can, right before the op that contains the backward: behind the Recv, which waits for nothing.

    Args:
        schedule: Its name gets a ``+R``.
        stages: Those that recompute; None: all.

    Raises:
        ScheduleError: There is no such stage, or an F reads predicted weights: once the optimizer has stepped, they
            would be predicted otherwise.
    """
    chosen = set(range(schedule.num_stages) if stages is None else stages)
    strange = sorted(chosen - set(range(schedule.num_stages)))
    if strange:
        raise ScheduleError(
            f"{schedule.name}: recompute: got stage {', '.join(map(str, strange))}, expected 0 to "
            f"{schedule.num_stages - 1}; try fewer"
        )
    parts = [part for row in schedule.ops for op in row for part in computes(op) if part.stage in chosen]
    has_one = {(part.stage, part.microbatch) for part in parts if part.phase is Phase.RECOMPUTE}
    missing = {
        key: replace(part, phase=Phase.RECOMPUTE)
        for part in parts
        if part.phase is Phase.FORWARD and (key := (part.stage, part.microbatch)) not in has_one
    }
    guess = next((part for part in missing.values() if part.lookahead), None)
    if guess is not None:
        raise ScheduleError(
            f"{schedule.name}: recompute: got {guess.stage}F{guess.microbatch} on predicted weights, expected weights "
            "that R can read again; try a schedule without prediction"
        )
    rows = tuple(tuple(_with(row, missing)) for row in schedule.ops)
    return replace(schedule, name=f"{schedule.name}+R", ops=rows)


def _with(row: tuple[Op, ...], missing: dict[tuple[int, int], Compute]) -> Iterator[Op]:
    """Yield the ops of `row`, and each of the `missing` R before its backward."""
    for op in row:
        for part in computes(op):
            key = (part.stage, part.microbatch)
            if part.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT) and key in missing:
                yield missing[key]
        yield op
