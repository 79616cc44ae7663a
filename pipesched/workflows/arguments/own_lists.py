"""Reading and checking of the lists that a user's own builder returns; invalid lists are refused in one line."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any, get_args

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.common import MAX_CELLS, MAX_NUMBER, integer, shown
from pipesched.schedules.ops import (
    Average,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    stages_of_op,
)
from pipesched.schedules.transforms import with_steps


def builder_rows(made: Any, num_ranks: int) -> list[list[Op]]:
    """Return the ops of each rank: at most `num_ranks` + 1 ranks, and at most `MAX_CELLS` ops of each.

    Args:
        made: The result of the builder: None, a Schedule, or an iterable of iterables, in which code of the user runs.
        num_ranks: Requested ranks.
    """
    rows = () if made is None else made.lists if isinstance(made, Schedule) else made
    return [list(islice(iter(row), MAX_CELLS)) for row in islice(iter(rows), num_ranks + 1)]


def builder_schedule(label: str, made: Any, rows: list[list[Op]], num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the rows of a builder's result as a Schedule with the name `label`.

    Raises:
        ScheduleError: The result is no schedule of `num_ranks` ranks and `num_microbatches` micro-batches.
    """
    problem = _problem(made, rows, num_ranks, num_microbatches)
    if problem is not None:
        raise ScheduleError(f"schedule {label}: {problem}")
    if isinstance(made, Schedule):
        schedule = replace(made, name=label, lists=tuple(map(tuple, rows)), origin=None, layout=None)
    else:
        num_stages = 1 + max((stage for ops in rows for op in ops for stage in stages_of_op(op)), default=-1)
        schedule = make_schedule(label, num_stages, num_microbatches, rows)
    if schedule.num_stages * num_microbatches > MAX_CELLS:
        raise ScheduleError(
            f"schedule {label}: got {schedule.num_stages} stages of {num_microbatches} micro-batches, expected at most "
            f"{MAX_CELLS} in all; number the stages from 0 without gaps"
        )
    return with_steps(schedule)


def _problem(made: Any, lists: list[list[Op]], num_ranks: int, num_microbatches: int) -> str | None:
    """Return why `made` is no schedule of these ranks and micro-batches, with rank and op, or None if it is one."""
    if made is None or isinstance(made, str):
        return f"got {shown(made)}, expected a Schedule, or a list of ops for each rank; return it"
    if isinstance(made, Schedule) and made.num_microbatches != num_microbatches:
        return (
            f"got a Schedule of {shown(made.num_microbatches)} micro-batches, expected {num_microbatches}; make so many"
        )
    if isinstance(made, Schedule) and not _are_numbers(made.num_stages, made.width, *made.rank_to_device):
        return (
            "got a Schedule whose num_stages or rank_to_device are no numbers, expected one of make_schedule; call it"
        )
    if len(lists) != num_ranks:
        count = "more" if len(lists) > num_ranks else len(lists)
        return f"got lists of {count} ranks, expected {num_ranks}; make one for each of num_ranks"
    for rank, ops in enumerate(lists):
        for index, op in enumerate(ops):
            if not _is_op(op):
                got = f"rank {rank}, op {index}: got {_shown(op)}"
                return f"{got}, expected an op of whole numbers; try pipesched.schedules.ops.forward(0, 0)"
    return None


def _shown(op: object) -> str:
    """Return a value in the place of an op as text; an op with bad parts shows its parts."""
    if not isinstance(op, get_args(Op)):
        return shown(op)
    parts = (getattr(op, name) for name in type(op).__slots__)
    return f"{type(op).__name__}({', '.join(str(part) if isinstance(part, Phase) else shown(part) for part in parts)})"


def _is_op(op: object) -> bool:
    """Return whether `op` is an op whose numbers are integers."""
    match op:
        case Compute():
            return isinstance(op.phase, Phase) and _are_numbers(op.stage, op.microbatch, op.version, op.lookahead)
        case Overlap():
            return all(isinstance(part, Compute) and _is_op(part) for part in (op.first, op.second))
        case Send() | Recv():
            message = op.message
            is_message = isinstance(message, Message) and isinstance(message.payload, Payload)
            return is_message and _are_numbers(message.stage, message.microbatch, op.peer)
        case Reduce() | Step() | Average() | Unshard() | Reshard():
            return _are_numbers(op.stage)
    return False


def _are_numbers(*values: object) -> bool:
    numbers = map(integer, values)
    return all(number is not None and 0 <= number <= MAX_NUMBER for number in numbers)
