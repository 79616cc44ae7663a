"""A quick check of the columns of lists without communication: whether they are complete and in order.

It supports lists of computations on weight version 0, either with one Step at the end of every stage, or without
Steps. For unsupported or faulty lists, `check.structure` and `check.gradient_flow` find the faults, op by op.
"""

from __future__ import annotations

import numpy as np

from pipesched.schedules import Schedule
from pipesched.schedules.columns import Int32s, machine_code, op_cells

OVERLAPPED, SEND_F, STEP = op_cells.OVERLAPPED, op_cells.SEND_F, op_cells.STEP


def is_complete(schedule: Schedule) -> bool:
    """Whether each computation is there once, on one rank and in order; False if the columns cannot show it.

    Args:
        schedule: The schedule; the answer is False if it is generated.
    """
    if not schedule.is_held or schedule.is_lowered or len(schedule.rank_to_device) != schedule.num_ranks:
        return False
    columns, num_stages, num_microbatches = schedule.columns, schedule.num_stages, schedule.num_microbatches
    counts, num_pairs = columns.counts, num_stages * num_microbatches
    has_words = counts[STEP] not in (0, num_stages) or sum(counts[SEND_F:]) > counts[STEP]
    if has_words or columns.others is not None or columns.lookaheads is not None:
        return False
    if len(columns.codes) < 2 * num_pairs or not columns.are_within(num_stages, num_microbatches):
        return False
    codes, stages = columns.codes % OVERLAPPED, columns.stages
    ranks, owners = columns.rank_of(np.arange(len(codes))), machine_code.int32s(num_stages)
    owners[stages] = ranks
    if (owners[stages] != ranks).any():
        return False  # replicas: their gradients are to be added up
    cells, steps = np.flatnonzero(codes < SEND_F), np.flatnonzero(codes == STEP)
    last_cells = machine_code.int32s(num_stages, -1)
    last_cells[stages[cells]] = cells
    if len(np.unique(stages[steps])) < len(steps) or (steps < last_cells[stages[steps]]).any():
        return False
    places = machine_code.int32s(SEND_F * num_pairs, -1).reshape(SEND_F, num_pairs)  # by phase and micro-batch
    places[codes[cells], stages[cells] * num_microbatches + columns.microbatches[cells]] = cells
    return len(cells) == (places >= 0).sum() and _are_in_order(*places)


def _are_in_order(f: Int32s, b: Int32s, i: Int32s, w: Int32s, r: Int32s, late_r: Int32s) -> bool:
    """Whether each micro-batch of each stage has F, (R), and then B, or I and W, given their cells or -1."""
    has_b, has_r = b >= 0, (r >= 0) | (late_r >= 0)
    first, recomputes = np.where(has_b, b, i), np.maximum(r, late_r)
    is_whole = has_b & (i < 0) & (w < 0)
    is_split = ~has_b & (i >= 0) & (w > i)
    is_rebuilt = (np.minimum(r, late_r) < 0) & (f < recomputes) & (recomputes < first)
    return bool(((f >= 0) & (f < first) & (is_whole | is_split) & (is_rebuilt | ~has_r)).all())
