"""Recompute, a transform over any schedule: R right before every backward (GPipe, arXiv:1811.06965, section 2.3).

1F1B with p = 3 ranks and m = 3 micro-batches:

    rank 0  F0 F1 F2 R0 .. .. B0 R1 .. B1 R2 .. B2
    rank 1  .. F0 F1 R0 .. B0 F2 R1 B1 R2 .. B2 ..
    rank 2  .. .. F0 R0 B0 F1 R1 B1 F2 R2 B2 .. ..

F then keeps only the stage's input, and R rebuilds the other activations. A rank holds one micro-batch in full, and
the inputs of the others in flight. An early R needs no gradient, so it runs before the gradient arrives: a batch takes
(m + p - 1)(t_f + t_b) + m t_f. A late R waits for the gradient of its backward, as in trainers that recompute inside
the backward (Megatron-LM, DeepSpeed, torchtitan): a batch takes (m + p - 1)(2 t_f + t_b), and the rebuilt activations
are held for a shorter time.

R reads the weights of its backward. If these are the weights of F, R rebuilds the output of F. Otherwise (newer weights
in the backward, or other predictions) R makes the activations of the backward's weights, and only the sent messages
come from the weights of F. So R never needs a version that no other op reads, and a prediction can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.columns import OpColumns, cell_code, op_cells
from pipesched.schedules.ops import Op, Phase, computes

RecomputeWhen: TypeAlias = Literal["early", "late"]
"""Whether R runs before the gradient of its backward has arrived, or after."""

_REBUILT_FOR = (Phase.BACKWARD, Phase.BACKWARD_INPUT)
"""The phases that read the rebuilt activations."""


def recompute(schedule: Schedule, stages: Collection[int] | None = None, when: RecomputeWhen = "early") -> Schedule:
    """Return `schedule`, lowered or not, with an R before the B or I of every micro-batch without an R.

    R comes right before the op that contains the backward, so it is behind a Recv directly before this op.

    Args:
        schedule: The schedule; the name of the result has a ``+R``, or ``+LATE_R``.
        stages: The stages that recompute, or None for all.
        when: Whether the new R run before the gradient of their backward has arrived, or after.

    Raises:
        ScheduleError: A stage does not exist.
    """
    chosen = set(range(schedule.num_stages) if stages is None else stages)
    strange = sorted(chosen - set(range(schedule.num_stages)))
    if strange:
        raise ScheduleError(
            f"{schedule.name}: recompute: got stage {', '.join(map(str, strange))}, expected 0 to "
            f"{schedule.num_stages - 1}; leave the others out"
        )
    is_late = when == "late"
    if schedule.is_held and not schedule.columns.recomputes:
        lists: tuple[Iterable[Op], ...] = _with_all(schedule.columns, chosen, is_late=is_late).rows()
    else:
        lists = schedule.changed(partial(_recomputed, stages=chosen, is_late=is_late))
    return replace(schedule, name=f"{schedule.name}+{'LATE_' * is_late}R", lists=lists)


def _with_all(columns: OpColumns, stages: Collection[int], *, is_late: bool) -> OpColumns:
    """Return columns with an R inserted before each backward of `stages`; the given columns have no R."""
    codes, begins = columns.codes, columns.begins
    due = [code + at for code in map(cell_code, _REBUILT_FOR) for at in (0, op_cells.OVERLAPPED)]
    cells = np.flatnonzero(np.isin(codes, due) & np.isin(columns.stages, [*stages]))
    places = cells - ((cells > 0) & (codes[cells - 1] >= op_cells.OVERLAPPED))
    others = columns.stages, columns.microbatches, columns.others, columns.lookaheads
    added = [None if column is None else column[cells] for column in others]
    num_added = np.diff(np.searchsorted(cells, begins)).tolist()
    return columns.with_cells(num_added, places, [[op_cells.LATE_R if is_late else op_cells.R] * len(cells), *added])


def _recomputed(ops: Iterable[Op], stages: Collection[int], *, is_late: bool) -> Iterator[Op]:
    """Yield `ops`, with the missing R before each backward of `stages`."""
    rebuilt: set[tuple[int, int]] = set()
    for op in ops:
        for part in computes(op):
            place = (part.stage, part.microbatch)
            if part.phase is Phase.RECOMPUTE:
                rebuilt.add(place)
            elif part.phase in _REBUILT_FOR and part.stage in stages:
                if place not in rebuilt:
                    yield replace(part, phase=Phase.RECOMPUTE, is_late=is_late)
                rebuilt.discard(place)
        yield op
