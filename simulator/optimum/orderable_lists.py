"""Requirements on lists whose ops may be reordered: every order of them must do the same work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.ops import (
    Compute,
    Op,
    Overlap,
    Phase,
    Recv,
    Reshard,
    Send,
    Step,
    Unshard,
    backward_input,
    backward_weight,
)
from pipesched.simulator import SAME, SimulationError

_WHOLE, _SPLIT = {Phase.FORWARD, Phase.BACKWARD}, {Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT}

_MOST_OPS = 100_000
"""Ops of lists that may be ordered anew; known orders of as many take about half a minute."""


class NotOrderableError(SimulationError):
    """Another order of these lists would not do the same work."""


def require_orderable_length(schedule: Schedule) -> None:
    """Refuse lists that are too long to reorder.

    Raises:
        SimulationError: The lists are too long; the message has the possible number of micro-batches.
    """
    num_ops = len(schedule.columns.codes)
    if num_ops > _MOST_OPS:
        raise SimulationError(
            f"{schedule.name}: got {num_ops} ops to order, expected at most {_MOST_OPS}; try "
            f"{max(1, schedule.num_microbatches * _MOST_OPS // num_ops)} micro-batches"
        )


def orderable(schedule: Schedule, costs: StageCosts) -> Schedule:
    """Return the lists as F, B, I, W, R and Steps alone, backwards all whole or all split.

    Messages are left out, because lowering inserts them again. An Overlap that hides nothing becomes its two ops, one
    after the other. If lists have whole and split backwards, the whole backwards are split.

    Args:
        schedule: One pipeline, one batch, each stage on one rank, each rank on a device of its own.
        costs: Costs with the overlap, and with the times of B, I and W.

    Raises:
        NotOrderableError: The schedule is of another kind, or another order of the ops would not do the same work.
    """
    if len(set(schedule.rank_to_device)) < schedule.num_ranks:
        raise NotOrderableError(f"{schedule.name}: got ranks that share a device, expected a device for each; try 1f1b")
    lists = replace(
        schedule, lists=tuple(tuple(_plain(row, schedule, costs)) for row in schedule.ops), is_lowered=False
    )
    phases = {op.phase for row in lists.ops for op in row if isinstance(op, Compute)} - {Phase.RECOMPUTE}
    if phases > _WHOLE:
        for stage, cost in enumerate(costs.stages):
            parts_s = (cost.backward_input_s or 0.0) + (cost.backward_weight_s or 0.0)
            if abs((cost.whole_backward_s or 0.0) - parts_s) > SAME * parts_s:
                raise NotOrderableError(
                    f"{schedule.name}: got B beside I and W, and on stage {stage} B takes another time than I and W "
                    "together, expected the same time; order lists with one kind of backward"
                )
        lists = split_backwards(lists)
    _require_complete(lists)
    return lists


def is_split(schedule: Schedule) -> bool:
    """Whether a schedule has I and W."""
    return any(isinstance(op, Compute) and op.phase is Phase.BACKWARD_INPUT for row in schedule.ops for op in row)


def recomputing_stages(schedule: Schedule) -> frozenset[int]:
    """Return the stages that have an R."""
    parts = (op for row in schedule.ops for op in row if isinstance(op, Compute))
    return frozenset(op.stage for op in parts if op.phase is Phase.RECOMPUTE)


def split_backwards(schedule: Schedule) -> Schedule:
    """Return `schedule` with I and W, one right after the other, in the place of every B."""
    return replace(schedule, lists=schedule.changed(lambda row: (part for op in row for part in _split(op))))


def _split(op: Op) -> tuple[Op, ...]:
    if isinstance(op, Compute) and op.phase is Phase.BACKWARD:
        return backward_input(op.stage, op.microbatch), backward_weight(op.stage, op.microbatch)
    return (op,)


def _plain(row: tuple[Op, ...], schedule: Schedule, costs: StageCosts) -> Iterator[Compute | Step]:
    for op in row:
        match op:
            case Send() | Recv() | Unshard() | Reshard():
                continue
            case Overlap() if not costs.overlap:
                yield from (op.first, op.second)
            case Compute(is_late=True):
                raise NotOrderableError(
                    f"{schedule.name}: got {op}, which waits for a gradient, expected R that runs early; "
                    "try `recompute_when=early`"
                )
            case Compute() if not op.version and not op.lookahead:
                yield op
            case Step():
                yield op
            case _:
                raise NotOrderableError(
                    f"{schedule.name}: got {op}, expected only F, B, I, W, R and steps, in one pipeline and one batch "
                    "without overlapped ops; try 1f1b, zb_h1, interleaved or zbv"
                )


def _require_complete(schedule: Schedule) -> None:
    counts = Counter(op for row in schedule.ops for op in row)
    phases, rebuilt = _SPLIT if is_split(schedule) else _WHOLE, recomputing_stages(schedule)
    for stage in range(schedule.num_stages):
        for phase in sorted(phases | ({Phase.RECOMPUTE} if stage in rebuilt else set())):
            for microbatch in range(schedule.num_microbatches):
                op = Compute(phase, stage, microbatch)
                if counts[op] != 1:
                    raise NotOrderableError(f"{schedule.name}: got {op} {counts[op]} times, expected each op once")
        if counts[Step(stage)] > 1:
            raise NotOrderableError(f"{schedule.name}: got {counts[Step(stage)]} steps of stage {stage}, expected one")
        if len(schedule.replicas(stage)) > 1:
            raise NotOrderableError(
                f"{schedule.name}: got stage {stage} on ranks {', '.join(map(str, schedule.replicas(stage)))}, "
                "expected each stage on one rank; try 1f1b, zb_h1, interleaved or zbv"
            )
