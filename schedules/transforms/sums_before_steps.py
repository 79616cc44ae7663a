"""Sums over stages before the Steps of a batch: a barrier, and the gradients of tied weights.

*A barrier*: gradient clipping by the global norm, and a check of the loss scale, need the gradients of all stages. No
stage may step before all stages have ended the backwards of the batch. Two ranks, without and with the barrier:

    rank 0   F0 F1 .. B0 .. B1 Step           rank 0   F0 F1 .. B0 .. B1 Norm Step
    rank 1   .. F0 B0 F1 B1 Step              rank 1   .. F0 B0 F1 B1 Norm ..  Step

Every stage adds the norm of its gradients (a Reduce), and the Steps wait for the sum. So the period of a batch that
repeats is its makespan, if Steps take no time.

*Tied weights*, such as an embedding that also serves as the head: the stages that share the weights sum their gradients
before they step. Often these are the first and the last stage. Other stages do not wait.

Sums over replicas come first, then tied gradients, then the norm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.ops import Op, Reduce, Reshard, Step, Summed, Unshard, awaits_sum, stages_of_op
from pipesched.schedules.semantics import misplaced_sums
from pipesched.schedules.transforms.longer_run import runs_without_flush
from pipesched.schedules.transforms.training_run import with_steps

_ORDER = tuple(Summed)
"""The order of the sums of a batch."""


def with_step_barrier(schedule: Schedule) -> Schedule:
    """Return `schedule`, lowered or not, with sums of norms over all stages before the Steps of each batch.

    The Steps of a rank move behind the last backward of its batch. Lists without Steps get them at their ends; lists
    with a barrier are returned as they are.

    Raises:
        ScheduleError: Stages step without a flush, so that some micro-batches are in flight at every Step; or the
            schedule averages pipelines, each of which has a norm of its own.
    """
    return _with_sums(schedule, Summed.NORM, range(schedule.num_stages), "a barrier before the steps")


def with_tied_sum(schedule: Schedule, stages: Collection[int] = ()) -> Schedule:
    """Return `schedule`, lowered or not, with sums of the gradients of tied weights before the Steps of `stages`.

    Steps move as in `with_step_barrier`. A schedule of one stage, or with such sums, is returned as it is.

    Args:
        schedule: The schedule.
        stages: The stages that share weights (default: the first and the last).

    Raises:
        ScheduleError: As in `with_step_barrier`; or the schedule sums over other stages than `stages`.
    """
    tied = sorted({*stages} or {0, schedule.num_stages - 1})
    if len(tied) == 1:
        return schedule
    summed = schedule.summed_stages(Summed.TIED)
    if summed and not {*stages} <= {*summed}:
        raise ScheduleError(
            f"{schedule.name}: got tied stages {_listed(tied)} in lists with a sum over stages {_listed(summed)}, "
            "expected the same stages; leave REDUCE_TIED out of the lists"
        )
    return _with_sums(schedule, Summed.TIED, tied, f"tied stages {_listed(tied)}")


def _listed(stages: Iterable[int]) -> str:
    return ", ".join(map(str, stages))


def can_sum_before_steps(schedule: Schedule) -> bool:
    """Return whether stages of `schedule` can sum before their Steps: it has a flush, and averages no pipelines."""
    return not (schedule.averagers or runs_without_flush(schedule))


def _with_sums(schedule: Schedule, content: Summed, stages: Collection[int], what: str) -> Schedule:
    if runs_without_flush(schedule):
        raise ScheduleError(
            f"{schedule.name}: got {what}, expected a schedule with a flush, as here stages step while their "
            f"micro-batches are in flight; {_advice(content)}"
        )
    if schedule.averagers:
        raise ScheduleError(
            f"{schedule.name}: got {what}, expected one model, as each averaged pipeline steps by itself; "
            f"{_advice(content)}"
        )
    if content in schedule.summands:
        if schedule.is_held and any(misplaced_sums(schedule, content)):
            raise ScheduleError(
                f"{schedule.name}: got {what}, and lists with sums before some Steps only, expected a sum before every "
                "Step of these stages; try 'pipesched check'"
            )
        return schedule
    stepping = schedule if any(isinstance(op, Step) for op in schedule.lists[0]) else with_steps(schedule.held())
    layout = stepping.layout and replace(stepping.layout, sums=(*stepping.layout.sums, (content, tuple(stages))))
    lists = stepping.changed(partial(_summed, content=content, stages=stages))
    return replace(stepping, lists=lists, layout=layout)


def _advice(content: Summed) -> str:
    return "try 1f1b" + (
        ", or cut the model so that one stage has all tied layers, or untie the weights"
        if content is Summed.TIED
        else ""
    )


def _summed(row: Iterable[Op], content: Summed, stages: Collection[int]) -> Iterator[Op]:
    """Yield the ops of a rank, with the sums of `stages` before the Steps of each batch."""
    last: list[Step | Reduce] = []  # of the batch
    for op in row:
        if awaits_sum(op):
            last.append(op)
            continue
        stepped = {step.stage for step in last if isinstance(step, Step)}
        if not isinstance(op, Unshard | Reshard) and stepped.intersection(stages_of_op(op)):
            yield from _in_order(last, content, stages)  # the next batch begins
            last = []
        yield op
    yield from _in_order(last, content, stages)


def _in_order(last: Sequence[Step | Reduce], content: Summed, stages: Collection[int]) -> Iterator[Op]:
    steps = [op for op in last if isinstance(op, Step)]
    sums = [op for op in last if isinstance(op, Reduce)]
    sums += [Reduce(step.stage, content) for step in steps if step.stage in stages]
    yield from sorted(sums, key=lambda op: _ORDER.index(op.content))
    yield from steps
