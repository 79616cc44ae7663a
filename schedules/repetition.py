"""Repetition: a batch's lists run again and again, generated while they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pipesched.schedules.common import positive
from pipesched.schedules.ops import Op, Step, moved
from pipesched.schedules.schedule import GeneratedOps, Schedule


def repeat(schedule: Schedule, times: int, *, in_memory: bool = False) -> Schedule:
    """Return `schedule`, lowered or not, run `times` times: batch b's micro-batch i is micro-batch b m + i.

    Versions rise by the Steps of each batch, so a synchronous schedule stays synchronous: every op of batch b reads
    version b. Lower the repeated schedule rather than the batch: the first messages of a batch then need not wait for
    the last ops of the batch before.

    Args:
        schedule: A batch.
        times: Number of batches.
        in_memory: Whether the lists are made at once, as columns; otherwise they are generated.

    Raises:
        ScheduleError: `times` is below 1.
        NotRunnableError: A forward is missing.
    """
    positive(times=times)
    if in_memory:
        lists = schedule.columns.repeated(times, schedule.num_microbatches).rows()
        return replace(schedule, num_microbatches=times * schedule.num_microbatches, lists=lists, layout=None)
    layout = schedule.generated_layout
    if times == 1 and schedule.is_held:
        return schedule
    return replace(
        schedule,
        num_microbatches=times * schedule.num_microbatches,
        lists=tuple(
            GeneratedOps(partial(_repeated, row, times, schedule.num_microbatches), row) for row in schedule.ops
        ),
        layout=layout,
    )


def _repeated(row: tuple[Op, ...], times: int, num_microbatches: int) -> Iterator[Op]:
    steps = Counter(op.stage for op in row if isinstance(op, Step))
    for batch in range(times):
        before = Counter({stage: batch * count for stage, count in steps.items()})
        for op in row:
            yield moved(op, batch * num_microbatches, before.__getitem__)
