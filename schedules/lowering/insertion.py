"""Lowering: insert the sends and receives between the computations.

A Send comes right after the op that makes its message. A Recv comes right after the last op of the receiving rank
that the maker of the message depends on. An earlier Recv could not start the transfer sooner: whatever the costs, the
Send is posted after this op. A later Recv might delay the transfer. So a transfer always starts when its Send is
posted, and a rank holds no receive buffer of a message that the sender cannot make yet.

Vector clocks order the ops of different ranks: ``clock[r]`` counts the ops of rank r that are certainly over.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any, NoReturn

import numpy as np

from pipesched.schedules import NotRunnableError, Schedule, ScheduleError
from pipesched.schedules.columns import Cells, MessageTable, OpColumns, machine_code, message_table, op_cells
from pipesched.schedules.common import MOST_RANKS, shown
from pipesched.schedules.lowering.recv_places import (
    DONE,
    FULL,
    WORK_PARTS,
    KnownMessages,
    KnownRanks,
    MeetingClocks,
    ReduceMeetings,
    work_through,
    write_lowered,
)
from pipesched.schedules.ops import stages_of_op
from pipesched.schedules.semantics import explain, progress

_MAX_CLOCKS = MOST_RANKS**2
"""Most numbers in the clocks of all ranks, and of one op in twenty, which take half a minute and 2 GB."""

_KEPT = "_lowered"
"""Attribute in which a schedule keeps its lowered form."""


def lower(schedule: Schedule) -> Schedule:
    """Return `schedule` with its Sends and Recvs, or `schedule` itself if it is lowered; a second call is free.

    A message with its maker and user on one rank is not sent.

    Raises:
        NotRunnableError: The lists cannot finish, so that their messages have no order.
        ScheduleError: The lists are too long for this number of ranks, or `schedule` is no Schedule.
    """
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"schedule: got {shown(schedule)}, expected a Schedule; try pipesched.build('1f1b', 4, 8)")
    if schedule.is_lowered:
        return schedule
    known: Schedule | None = vars(schedule).get(_KEPT)
    if known is not None:
        return known
    require_lowerable(schedule)
    columns = _lowered(schedule.columns, schedule.num_stages, schedule.num_microbatches)
    if columns is None:
        _refuse(schedule)
    lowered = replace(schedule, lists=columns.rows(), is_lowered=True)
    vars(schedule)[_KEPT] = lowered  # as a cached property is
    return lowered


def require_lowerable(schedule: Schedule) -> None:
    """Refuse lists, lowered or not, whose lowering would take too long.

    Raises:
        ScheduleError: The lists are too long for this number of ranks.
    """
    if schedule.is_lowered:
        return
    num_ranks, num_cells = schedule.num_ranks, len(schedule.columns.codes)
    if num_ranks * max(num_ranks, num_cells // 20) <= _MAX_CLOCKS:
        return
    most = 20 * _MAX_CLOCKS // num_ranks
    num_microbatches = schedule.num_microbatches * most // num_cells
    advice = f"{num_microbatches} micro-batches" if num_ranks**2 <= _MAX_CLOCKS else f"{isqrt(_MAX_CLOCKS)} ranks"
    raise ScheduleError(
        f"{schedule.name}: cannot be lowered: got {num_cells} ops on {num_ranks} ranks, expected at most {most}; "
        f"try {advice}"
    )


def _refuse(schedule: Schedule) -> NoReturn:
    """Raise the reason why lists cannot be lowered."""
    outcome = progress(schedule)
    if not outcome.blocked:
        raise NotRunnableError(f"{schedule.name}: cannot be lowered: {_unknown_op(schedule)}; check the lists")
    deadlock = explain(schedule, outcome)[0]
    where = f"rank {deadlock.links[0].rank} op {deadlock.links[0].index}"
    raise NotRunnableError(f"{schedule.name}: cannot be lowered: {where}: {deadlock}; reorder these ops")


def _unknown_op(schedule: Schedule) -> str:
    """Return the text of the invalid op in lists that can finish."""
    for rank, row in enumerate(schedule.ops):
        for op in row:
            if any(not 0 <= stage < schedule.num_stages for stage in stages_of_op(op)):
                return f"rank {rank}: {op}: expected a stage below {schedule.num_stages}"
    return "an op appears twice, or its micro-batch is out of range"


def _lowered(columns: OpColumns, num_stages: int, num_microbatches: int) -> OpColumns | None:
    """Return columns with Sends and Recvs, or None if some list cannot finish."""
    if not columns.are_within(num_stages, num_microbatches):
        return None
    num_ranks, num_cells = columns.num_ranks, len(columns.codes)
    full: Any = machine_code.int32s
    cells, table = columns.cells, message_table(num_stages)
    homes = full(num_stages * num_microbatches, -1)
    forwards = np.flatnonzero(columns.codes % op_cells.OVERLAPPED == op_cells.F)
    homes[columns.stages[forwards] * num_microbatches + columns.microbatches[forwards]] = columns.rank_of(forwards)
    places = _recv_places(cells, table, num_microbatches, *_meetings(columns, num_stages), homes)
    if places is None:
        return None
    num_messages = int((places >= 0).sum())
    count = num_cells + 2 * num_messages
    lowered = OpColumns(
        full(num_ranks + 1),
        machine_code.int8s(count),
        full(count),
        full(count),
        full(count) if num_messages or len(cells.others) else None,
        full(count) if len(cells.lookaheads) else None,
    )
    machine_code.run_loop(
        write_lowered, cells, table, num_microbatches, homes, places, full(num_cells + num_ranks), lowered.cells,
        num_steps=num_cells,
    )  # fmt: skip
    return lowered


def _meetings(columns: OpColumns, num_stages: int) -> tuple[ReduceMeetings, int]:
    """Return the meetings of the Reduces of gradients, numbered stage by stage, and their number."""
    codes, stages = columns.codes, columns.stages
    of_cell: Any = machine_code.int32s(len(codes), -1)
    is_reduce = codes == op_cells.REDUCE
    reduces = np.flatnonzero(is_reduce if columns.others is None else is_reduce & (columns.others == 0))
    pairs = columns.rank_of(reduces) * num_stages + stages[reduces]  # of rank and stage
    order = np.argsort(pairs, kind="stable")
    reduces, pairs = reduces[order], pairs[order]
    known, firsts, counts = np.unique(pairs, return_index=True, return_counts=True)
    most = np.zeros(num_stages, np.int64)  # the Reduces of a stage on one rank
    np.maximum.at(most, known % num_stages, counts)
    begins = np.cumsum(most) - most
    of_cell[reduces] = begins[stages[reduces]] + np.arange(len(reduces)) - np.repeat(firsts, counts)
    steps = np.flatnonzero(codes == op_cells.STEP)
    listed = pairs * len(codes) + reduces  # ascending: by rank and stage, then by cell
    begin_of_pairs = (columns.rank_of(steps) * num_stages + stages[steps]) * len(codes)
    num_before = np.searchsorted(listed, begin_of_pairs + steps) - np.searchsorted(listed, begin_of_pairs)
    awaiting = steps[num_before > 0]
    of_cell[awaiting] = begins[stages[awaiting]] + num_before[num_before > 0] - 1
    members: Any = np.bincount(known % num_stages, minlength=num_stages).astype(np.int32)
    return ReduceMeetings(of_cell, members), int(most.sum())


def _recv_places(
    cells: Cells, table: MessageTable, num_microbatches: int, meetings: ReduceMeetings, num_meetings: int,
    homes: Any,
) -> Any:  # fmt: skip
    """Return the places of Recvs, as `work_through` writes them, or None if some list cannot finish."""
    num_ranks, num_cells, num_messages = len(cells.begins) - 1, len(cells.codes), 2 * len(homes)
    full: Any = machine_code.int32s

    def rows(count: int) -> Any:
        return np.zeros((count, num_ranks), np.int32)

    num_slots, outcome, places = max(64, 2 * num_ranks), FULL, None
    while outcome == FULL:
        places = full(num_cells, -1)
        met = MeetingClocks(rows(num_meetings), full(num_meetings))
        ranks = KnownRanks(full(num_ranks), full(num_ranks), full(num_ranks, -1), rows(num_ranks))
        makers, slots, waiters = (full(num_messages, -1) for _ in range(3))
        messages = KnownMessages(makers, slots, waiters, rows(num_slots), full(num_slots))
        outcome = machine_code.run_loop(
            work_through, cells, table, num_microbatches, homes, meetings, met, ranks, messages, places,
            num_steps=num_cells * (1 + num_ranks // 16), parts=WORK_PARTS,
        )  # fmt: skip
        num_slots *= 4
    return places if outcome == DONE else None
