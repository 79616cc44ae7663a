"""Insert instructions for a rank's own work into a program: posting, taking messages, and moving to the next op.

    Send, Recv          OWN, SEND or RECV
    Compute, Overlap    WAIT, OWN for each message, WORK, OWN
    Step                WAIT, WORK, OWN

Own work has one duration for all micro-batches of a stage on a rank.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesched.schedules.columns import op_cells
from pipesched.schedules.ops import Recv, Send
from pipesched.simulator import HandOverWork, after_op, of_post, of_receipt
from pipesched.simulator.fast.loop_arrays import OWN, WAIT
from pipesched.simulator.fast.program import OwnWork, Program, SpanNumbers

_AFTER, _RECEIPT, _POST = range(3)
"""Parts of the own work; at one place, the work after an op comes before the post of the next op."""


class _Insertions(NamedTuple):
    """New instructions, in the order of the program.

    Attributes:
        before: Index of the instruction before which each new instruction is inserted.
        parts: `_AFTER`, `_RECEIPT` or `_POST`, for each new instruction.
        cells: First cell of the op that the instruction belongs to.
        transfers: For a `_RECEIPT`, the transfer whose message is taken; otherwise 0.
    """

    before: npt.NDArray[Any]
    parts: npt.NDArray[Any]
    cells: npt.NDArray[Any]
    transfers: npt.NDArray[Any]


def with_own_work(program: Program) -> Program:
    """Return `program` with the instructions for own work, which it lacks so far."""
    new, spans = _insertions(program), program.spans
    works, numbers = _distinct_works(program, new)
    num_new, is_instruction = len(new.before), spans.starts < len(program.kinds)
    earlier, not_later = partial(np.searchsorted, new.before), partial(np.searchsorted, new.before, side="right")
    after = new.before[new.parts == _AFTER]
    numbers_of_spans = SpanNumbers(
        posted=spans.posted + earlier(spans.posted) + np.isin(spans.posted, after),
        starts=spans.starts + np.where(is_instruction, not_later(spans.starts), num_new),
        ends=spans.ends + np.where(is_instruction, earlier(spans.ends), num_new),
    )
    return replace(
        program,
        begins=(program.begins + earlier(program.begins)).astype(np.int32),
        kinds=np.insert(program.kinds, new.before, OWN),
        targets=np.insert(program.targets, new.before, 0),
        takes=np.insert(program.takes, new.before, len(program.durations) + numbers),
        durations=(*program.durations, *works),
        find_spans=partial(_spans, numbers_of_spans),
        own_work=OwnWork(new.before + np.arange(num_new), new.cells),
    )


def _insertions(program: Program) -> _Insertions:
    columns, spans = program.schedule.columns, program.spans
    cells = np.flatnonzero(~np.append(False, columns.codes[:-1] >= op_cells.OVERLAPPED)[: len(columns.codes)])
    codes = columns.codes[cells]
    computes = (codes < op_cells.SEND_F) | (codes >= op_cells.OVERLAPPED)
    after, posts = computes | (codes == op_cells.STEP), (codes >= op_cells.SEND_F) & (codes < op_cells.REDUCE)
    waits = np.flatnonzero((program.kinds == WAIT) & (program.targets < len(program.following)))
    op_of = np.searchsorted(spans.posted, waits, side="right") - 1
    is_receipt = computes[op_of] & (waits < spans.starts[op_of])
    waits, op_of = waits[is_receipt], op_of[is_receipt]
    before = np.concatenate([spans.ends[after], waits + 1, spans.posted[posts]])
    order = np.argsort(before, kind="stable")
    counts = [int(after.sum()), len(waits), int(posts.sum())]
    transfers = np.zeros(len(before), np.int64)
    transfers[counts[0] : counts[0] + counts[1]] = program.targets[waits]
    return _Insertions(
        before[order],
        np.repeat([_AFTER, _RECEIPT, _POST], counts)[order],
        np.concatenate([cells[after], cells[op_of], cells[posts]])[order],
        transfers[order],
    )


def _distinct_works(program: Program, new: _Insertions) -> tuple[list[HandOverWork], npt.NDArray[Any]]:
    """Return every different own work once, and the index of each insertion into them."""
    columns, devices = program.schedule.columns, program.schedule.rank_to_device
    ranks = columns.rank_of(new.cells)
    keys = np.zeros((4, len(new.cells)), np.int64)
    keys[0], keys[1], keys[2] = new.parts, ranks, columns.stages[new.cells]
    posts, receipts = new.parts == _POST, new.parts == _RECEIPT
    if columns.others is not None:
        keys[2, posts] += program.schedule.num_stages * columns.codes[new.cells[posts]]
        keys[3, posts] = columns.others[new.cells[posts]]
    keys[2, receipts] = program.sizes[new.transfers[receipts]]
    keys[3, receipts] = program.channel_of[new.transfers[receipts]]
    _, firsts, numbers = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    works = []
    for first in firsts.tolist():
        rank, op = int(ranks[first]), columns.op_at(int(new.cells[first]))
        if new.parts[first] == _RECEIPT:
            transfer = int(new.transfers[first])
            sender, _ = program.channels[program.channel_of[transfer]]
            works.append(of_receipt(rank, sender, program.messages[program.sizes[transfer]], devices))
        else:
            work = of_post(rank, op, devices) if isinstance(op, Send | Recv) else after_op(rank, op, devices)
            assert work is not None, "only ops with own work are asked"
            works.append(work)
    return works, numbers.reshape(-1)


def _spans(numbers: SpanNumbers, times: Any) -> SpanNumbers:
    """Return the times of spans, given their numbers."""
    return SpanNumbers(*(times[column] for column in numbers))
