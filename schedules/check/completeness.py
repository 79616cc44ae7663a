"""A quick check of the columns of lists without communication: whether they are complete and in order.

It supports lists of computations on weight version 0, either with one Step at the end of every stage, or without
Steps. For unsupported or faulty lists, `check.structure` and `check.gradient_flow` find the faults, op by op.
"""

from __future__ import annotations

from typing import Any

from pipesched.schedules import Schedule
from pipesched.schedules.columns import machine_code, op_cells

F, B, I, W, R, LATE_R, SEND_F, STEP, OVERLAPPED = (  # noqa: E741
    op_cells.F, op_cells.B, op_cells.I, op_cells.W, op_cells.R, op_cells.LATE_R, op_cells.SEND_F, op_cells.STEP,
    op_cells.OVERLAPPED,
)  # fmt: skip


def is_complete(schedule: Schedule) -> bool:
    """Whether each computation is there once, on one rank and in order; False if the columns cannot show it.

    Args:
        schedule: The schedule; the answer is False if it is generated.
    """
    if not schedule.is_held or schedule.is_lowered or len(schedule.rank_to_device) != schedule.num_ranks:
        return False
    columns, num_stages, num_microbatches = schedule.columns, schedule.num_stages, schedule.num_microbatches
    counts = columns.counts
    if (
        counts[STEP] not in (0, num_stages)
        or sum(counts[SEND_F:]) > counts[STEP]
        or columns.others is not None
        or columns.lookaheads is not None
    ):
        return False
    if len(columns.codes) < 2 * num_stages * num_microbatches or not columns.are_within(num_stages, num_microbatches):
        return False
    states = machine_code.int8s(num_stages * num_microbatches, -1)
    owners, are_over = machine_code.int32s(num_stages, -1), machine_code.int32s(num_stages)
    begins, codes, stages, microbatches, *_ = columns.cells
    return bool(
        machine_code.run_loop(
            are_all_there, begins, codes, stages, microbatches, num_microbatches, states, owners, are_over,
            num_steps=len(codes),
        )
    )  # fmt: skip


def are_all_there(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    begins: Any,
    codes: Any,
    stages: Any,
    microbatches: Any,
    num_microbatches: int,
    states: Any,
    owners: Any,
    are_over: Any,
) -> bool:
    """Go through all lists; return whether each micro-batch of each stage has F, (R), and then B, or I and W.

    Args:
        begins: R + 1 indices, and then columns of n cells, as in `OpColumns`, within the bounds.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_microbatches: m.
        states: Last phase of each micro-batch of each stage, -1 at first.
        owners: Rank of each stage, -1 at first.
        are_over: Whether the Step of each stage has been read, 0 at first.
    """
    for rank in range(len(begins) - 1):
        for i in range(begins[rank], begins[rank + 1]):
            code, stage = codes[i] % OVERLAPPED, stages[i]
            if code == STEP:
                if owners[stage] != rank or are_over[stage]:
                    return False
                are_over[stage] = 1
                continue
            own = stage * num_microbatches + microbatches[i]
            before = states[own]
            if are_over[stage]:
                return False
            if owners[stage] < 0:
                owners[stage] = rank
            if owners[stage] != rank:
                return False  # replicas: their gradients are to be added up
            if code == F:
                if before >= 0:
                    return False
            elif code == W:
                if before != I:
                    return False
            elif before not in (F, R, LATE_R) or (code in (R, LATE_R) and before != F):
                return False
            states[own] = code
    num_done = 0
    for own in range(len(states)):
        num_done += states[own] in (B, W)
    return num_done == len(states)
