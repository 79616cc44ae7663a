"""Repetition: a batch's lists run again and again, generated while they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from pipesched.schedules.counts import positive
from pipesched.schedules.op import Compute, Op, Recv, Send, Step, rewritten
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
