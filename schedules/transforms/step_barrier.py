"""A barrier before the Steps, as gradient clipping by the global norm and a check of the loss scale need one.

No stage may step before all stages have ended the backwards of the batch. Two ranks, without and with the barrier:

    rank 0   F0 F1 .. B0 .. B1 Step           rank 0   F0 F1 .. B0 .. B1 Norm Step
    rank 1   .. F0 B0 F1 B1 Step              rank 1   .. F0 B0 F1 B1 Norm ..  Step

Every rank adds the norm of the gradients of its stages (a Reduce), and the Steps wait for the sum. So the period of a
batch that repeats is its makespan, if Steps take no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.ops import Op, Reduce, Reshard, Step, Summed, Unshard, stages_of_op
from pipesched.schedules.transforms.longer_run import runs_without_flush
from pipesched.schedules.transforms.training_run import with_steps


def with_step_barrier(schedule: Schedule) -> Schedule:
    """Return `schedule`, lowered or not, with sums of norms over all stages before the Steps of each batch.

    The Steps of a rank move behind the last backward of its batch. Lists without Steps get them at their ends; lists
    with a barrier are returned as they are.

    Raises:
        ScheduleError: Stages step without a flush, so that some micro-batches are in flight at every Step; or the
            schedule averages pipelines, each of which has a norm of its own.
    """
    if runs_without_flush(schedule):
        raise ScheduleError(
            f"{schedule.name}: got a barrier before the steps, expected a schedule with a flush: a stage steps while "
            "its micro-batches are in flight; try 1f1b"
        )
    if schedule.averagers:
        raise ScheduleError(
            f"{schedule.name}: got a barrier before the steps, expected one model: averaged pipelines step alone; "
            "try 1f1b"
        )
    if Summed.NORM in schedule.summands:
        return schedule
    stepping = with_steps(schedule) if schedule.is_held else schedule
    layout = stepping.layout and replace(stepping.layout, sums=(*stepping.layout.sums, Summed.NORM))
    return replace(stepping, lists=stepping.changed(_with_norms), layout=layout)


def _with_norms(row: Iterable[Op]) -> Iterator[Op]:
    steps: list[Step] = []
    for op in row:
        if not isinstance(op, Unshard | Reshard) and {step.stage for step in steps}.intersection(stages_of_op(op)):
            yield from _behind_norms(steps)  # the next batch begins
            steps = []
        if isinstance(op, Step):
            steps.append(op)
        else:
            yield op
    yield from _behind_norms(steps)


def _behind_norms(steps: Sequence[Step]) -> Iterator[Op]:
    yield from (Reduce(step.stage, Summed.NORM) for step in steps)
    yield from steps
