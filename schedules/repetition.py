"""Repetition: a batch's lists run again and again, generated while they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy.typing as npt

from pipesched.schedules import machine_code
from pipesched.schedules.counts import positive
from pipesched.schedules.op import Compute, Op, Recv, Send, Step, rewritten
from pipesched.schedules.op_cells import OVERLAPPED, REDUCE, SEND_F, STEP
from pipesched.schedules.op_columns import OpColumns
from pipesched.schedules.schedule import GeneratedOps, Layout, Schedule


def repeat(schedule: Schedule, times: int) -> Schedule:
    """Return `schedule`, lowered or not, run `times` times: batch b's micro-batch i is micro-batch b m + i.

    Versions rise by the Steps of each batch, so a synchronous schedule stays synchronous: every op of batch b reads
    version b. Lower the repeated schedule rather than the batch: then the first messages of a batch need not wait for
    the last ops of the one before.

    Raises:
        ScheduleError: `times` is below 1; NotRunnableError: a forward is missing.
    """
    positive(times=times)
    homes = schedule.homes
    if times == 1 and schedule.is_held:
        return schedule
    return replace(
        schedule,
        num_microbatches=times * schedule.num_microbatches,
        lists=tuple(
            GeneratedOps(partial(_repeated, row, times, schedule.num_microbatches), row) for row in schedule.ops
        ),
        layout=Layout(homes, tuple(schedule.averagers)),
    )


def _repeated(row: tuple[Op, ...], times: int, num_microbatches: int) -> Iterator[Op]:
    steps = Counter(op.stage for op in row if isinstance(op, Step))
    for batch in range(times):
        before = Counter({stage: batch * count for stage, count in steps.items()})
        for op in row:
            yield moved(op, batch * num_microbatches, before.__getitem__)


def repeat_in_columns(schedule: Schedule, times: int) -> Schedule:
    """Return the lists of ``repeat(schedule, times).held()``, made without their ops."""
    columns, count = schedule.columns, schedule.num_microbatches
    num_ranks, num_cells = columns.num_ranks, times * columns.num_cells
    begins, codes, stages, microbatches, others, lookaheads = columns.cells
    full = machine_code.int32s
    others, lookaheads = (column if len(column) else full(columns.num_cells) for column in (others, lookaheads))
    longer: list[npt.NDArray[Any]] = [
        full(num_ranks + 1),
        machine_code.int8s(num_cells),
        *(full(num_cells) for _ in range(4)),
    ]
    machine_code.run_loop(
        write_repeated, begins, codes, stages, microbatches, others, lookaheads, times, count,
        full(schedule.num_stages), *longer, num_steps=num_cells,
    )  # fmt: skip
    if columns.lookaheads is None:
        longer.pop()
    return replace(schedule, num_microbatches=times * count, lists=OpColumns(*longer).rows(), layout=None)


def write_repeated(
    begins: Any, codes: Any, stages: Any, microbatches: Any, others: Any, lookaheads: Any, times: int,
    num_microbatches: int, steps: Any, longer_begins: Any, longer_codes: Any, longer_stages: Any,
    longer_microbatches: Any, longer_others: Any, longer_lookaheads: Any,
) -> None:  # fmt: skip
    """Write the cells of each rank `times` times, as `moved` moves their ops.

    Args:
        begins: R + 1 indices, and then columns of n cells, as `OpColumns` has them.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        others: n peers and versions.
        lookaheads: n look-aheads.
        times: Number of batches.
        num_microbatches: Micro-batches of a batch.
        steps: Room for a number of each stage.
        longer_begins: R + 1 indices to be written.
        longer_codes: Column of ``times * n`` cells to be written.
        longer_stages: Column of ``times * n`` cells to be written.
        longer_microbatches: Column of ``times * n`` cells to be written.
        longer_others: Column of ``times * n`` cells to be written.
        longer_lookaheads: Column of ``times * n`` cells to be written.
    """
    at = 0
    for rank in range(len(begins) - 1):
        longer_begins[rank] = at
        for stage in range(len(steps)):
            steps[stage] = 0
        for i in range(begins[rank], begins[rank + 1]):
            steps[stages[i]] += codes[i] == STEP
        for batch in range(times):
            for i in range(begins[rank], begins[rank + 1]):
                longer_codes[at], longer_stages[at], longer_lookaheads[at] = codes[i], stages[i], lookaheads[i]
                longer_microbatches[at], longer_others[at] = microbatches[i], others[i]
                code = codes[i] % OVERLAPPED
                if code < REDUCE:
                    longer_microbatches[at] += batch * num_microbatches
                if code < SEND_F:
                    longer_others[at] += batch * steps[stages[i]]
                at += 1
    longer_begins[len(begins) - 1] = at


def moved(op: Op, microbatches: int, steps: Callable[[int], int]) -> Op:
    """Return `op` as it is after `microbatches` more micro-batches.

    Args:
        op: The op.
        microbatches: Micro-batches before.
        steps: Returns the Steps of a stage before.
    """

    def compute(part: Compute) -> Compute:
        version = part.version + steps(part.stage)
        return Compute(part.phase, part.stage, part.microbatch + microbatches, version, part.lookahead)

    def post(op: Send | Recv) -> Send | Recv:
        return replace(op, message=op.message._replace(microbatch=op.message.microbatch + microbatches))

    return rewritten(op, compute, post)
