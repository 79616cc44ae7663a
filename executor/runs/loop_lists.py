"""The lists of one batch of a training loop: with an update, without one, and forwards alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from pipesched.executor import ExecutionError
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Op, Payload, Phase, Recv, Reduce, Send, Step, computes
from pipesched.schedules.transforms import runs_without_flush


def lists_of_batch(schedule: Schedule) -> Schedule:
    """Return the lowered lists of one batch, in memory.

    Raises:
        ExecutionError: The schedule has no flush, averages pipelines, or steps a stage other than once at its end.
    """
    if runs_without_flush(schedule) or schedule.averagers:
        kind = "averages pipelines" if schedule.averagers else "steps while micro-batches are in flight"
        raise ExecutionError(
            f"schedule {schedule.name}: got a schedule that {kind}, expected a flush at every step; try 1f1b, or "
            "pipesched.train(), which runs all schedules"
        )
    lowered = lower(schedule.held())
    for rank in range(lowered.num_ranks):
        for stage in lowered.stages_on(rank):
            if not _steps_once(lowered.lists[rank], stage):
                raise ExecutionError(
                    f"schedule {schedule.name}: got stage {stage} on rank {rank} without exactly one Step after its "
                    "backwards, expected the lists of one batch; give each stage one Step"
                )
    return lowered


def _steps_once(ops: Iterable[Op], stage: int) -> bool:
    """Return whether the last op on `stage` is its only Step."""
    own = [
        op
        for op in ops
        if (isinstance(op, Step) and op.stage == stage) or any(part.stage == stage for part in computes(op))
    ]
    return [index for index, op in enumerate(own) if isinstance(op, Step)] == [len(own) - 1]


def accumulating_lists(lists: Schedule) -> Schedule:
    """Return lowered lists without Steps and without the sums before them, so that gradients accumulate."""
    return replace(lists, lists=lists.changed(_without_updates))


def _without_updates(ops: Iterable[Op]) -> Iterator[Op]:
    return (op for op in ops if not isinstance(op, Step | Reduce))


def forward_lists(lists: Schedule, num_microbatches: int) -> Schedule:
    """Return the forwards of the first micro-batches in lowered lists, with their messages."""
    changed = lists.changed(partial(_forwards, num_microbatches))
    return replace(lists, lists=changed, num_microbatches=num_microbatches)


def _forwards(num_microbatches: int, ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        if isinstance(op, Send | Recv):
            if op.message.payload is Payload.ACTIVATION and op.message.microbatch < num_microbatches:
                yield op
        else:
            forwards = (part for part in computes(op) if part.phase is Phase.FORWARD)
            yield from (part for part in forwards if part.microbatch < num_microbatches)
