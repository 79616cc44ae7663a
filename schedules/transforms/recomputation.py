"""Recompute, a transform over any schedule: R right before every backward (GPipe, arXiv:1811.06965, section 2.3).

1F1B with p = 3 ranks and m = 3 micro-batches:

    rank 0  F0 F1 F2 R0 .. .. B0 R1 .. B1 R2 .. B2
    rank 1  .. F0 F1 R0 .. B0 F2 R1 B1 R2 .. B2 ..
    rank 2  .. .. F0 R0 B0 F1 R1 B1 F2 R2 B2 .. ..

F then keeps only the stage's input, and R rebuilds the rest: a rank holds one micro-batch in full, and of the others
in flight their inputs. R needs no gradient, so it runs while the gradient is on its way: a batch takes
(m + p - 1)(t_f + t_b) + m t_f, less than the (m + p - 1)(2 t_f + t_b) of a backward that recomputes.

R reads the weights that its backward reads. Where they are those of F, it rebuilds what F made. Where they are not
(newer weights in the backward, or other predictions) the activations become those of the backward's weights, and F's
remain in what it sent: so R never needs a version that nobody else reads, and a prediction can be made again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

from pipesched.schedules import Op, Phase, Schedule, ScheduleError, computes


def recompute(schedule: Schedule, stages: Collection[int] | None = None) -> Schedule:
    """Return `schedule`, lowered or not, with an R before the B or I of every micro-batch that has none yet.

    It comes as late as it can, right before the op that contains the backward: behind the Recv, which waits for
    nothing.

    Args:
        schedule: The schedule, whose name gets a ``+R``.
        stages: The stages that recompute; None: all.

    Raises:
        ScheduleError: There is no such stage.
    """
    chosen = set(range(schedule.num_stages) if stages is None else stages)
    strange = sorted(chosen - set(range(schedule.num_stages)))
    if strange:
        raise ScheduleError(
            f"{schedule.name}: recompute: got stage {', '.join(map(str, strange))}, expected 0 to "
            f"{schedule.num_stages - 1}; try fewer"
        )
    return replace(schedule, name=f"{schedule.name}+R", lists=schedule.changed(partial(_recomputed, stages=chosen)))


def _recomputed(ops: Iterable[Op], stages: Collection[int]) -> Iterator[Op]:
    """Yield `ops`, and before each backward of `stages` the R that it lacks."""
    rebuilt: set[tuple[int, int]] = set()
    for op in ops:
        for part in computes(op):
            place = (part.stage, part.microbatch)
            if part.phase is Phase.RECOMPUTE:
                rebuilt.add(place)
            elif part.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT) and part.stage in stages:
                if place not in rebuilt:
                    yield replace(part, phase=Phase.RECOMPUTE)
                rebuilt.discard(place)
        yield op
