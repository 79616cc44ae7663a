"""Check that every gradient reaches every replica of its stage's weights, once.

    on one rank     G G G G  Step       G stands for B or W

    replicas that   G G  Reduce Step    the same Reduces and Steps on all of them, a Reduce right before each Step;
    are one copy    G G  Reduce Step
                         Reduce Step    a replica without micro-batches adds nothing, but steps too

    replicas that   G G  Step Average   pipelines with optimizers of their own (elastic averaging)
    are several     G G  Step Average

A list without any Step leaves the optimizer to its caller, as PyTorch's files do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import TypeAlias, assert_never

from pipesched.schedules import Schedule
from pipesched.schedules.check.finding import Finding
from pipesched.schedules.ops import (
    ENDS_MICROBATCH,
    AnyStageOp,
    Average,
    Compute,
    Op,
    Overlap,
    Recv,
    Reduce,
    Send,
    StageOp,
    Step,
    Summed,
    computes,
    stages_of,
    stages_of_op,
)
from pipesched.schedules.semantics import misplaced_sums

_Event: TypeAlias = Compute | AnyStageOp
"""A computation that adds to the gradients of a stage, or an op on them or on the weights."""

_Events: TypeAlias = list[tuple[int, _Event]]
"""(index, op) of one rank's events of one stage."""


def updates(schedule: Schedule) -> Iterator[Finding]:
    """Yield a finding for each gradient that is lost, summed twice or not summed, and for each op on a wrong rank."""
    holders = _holders(schedule)
    for rank, row in enumerate(schedule.ops):
        for index, op in enumerate(row):
            if any(rank not in holders.get(stage, ()) for stage in stages_of_op(op)):
                yield Finding("structure", rank, index, f"{op} is of a stage that this rank does not compute")
        yield from _incomplete(rank, row)
    for content in (Summed.TIED, Summed.NORM):
        yield from _partly_summed(schedule, content)
    has_steps = any(isinstance(op, Step) for row in schedule.ops for op in row)
    for stage, replicas in sorted(holders.items()):
        if has_steps:
            for rank, events in replicas.items():
                yield from _applied(stage, rank, events)
        if len(replicas) > 1:
            yield from _shared(stage, replicas)


def _partly_summed(schedule: Schedule, content: Summed) -> Iterator[Finding]:
    """Yield a finding for each stage that lacks a sum over stages, or has a sum that it is not part of."""
    missing, others = misplaced_sums(schedule, content)
    for rank, stage in missing:
        text = f"{Reduce(stage, content)} is missing before {Step(stage)}, which waits for it on other stages or ranks"
        yield Finding("structure", rank, None, text)
    for rank, stage in others:
        yield Finding("structure", rank, None, f"{Reduce(stage, content)} has no part in a sum before {Step(stage)}")


def _incomplete(rank: int, row: Sequence[Op]) -> Iterator[Finding]:
    """Yield gradients that come between a sum over stages and its Step, so that the sum lacks them."""
    summed: dict[int, Reduce] = {}
    for index, op in enumerate(row):
        if isinstance(op, Step):
            summed.pop(op.stage, None)
        elif isinstance(op, Reduce) and (op.is_over_stages or op.stage in summed):
            if not op.is_over_stages:
                yield Finding(
                    "structure",
                    rank,
                    index,
                    f"{op} comes after {summed[op.stage]}, whose sum lacks this sum of the replicas",
                )
            summed[op.stage] = op
        for part in computes(op):
            if part.phase in ENDS_MICROBATCH and part.stage in summed:
                text = f"{part} comes between {summed[part.stage]} and Step: the sum would lack its gradient"
                yield Finding("structure", rank, index, text)


def _holders(schedule: Schedule) -> dict[int, dict[int, _Events]]:
    """Return the ranks with a copy of each stage: they compute the stage, or reduce with a rank that computes it."""
    computed = [set(stages_of(row)) for row in schedule.ops]
    reduced = [{op.stage for op in row if isinstance(op, Reduce) and _events(op)} for row in schedule.ops]
    common = {stage for own, more in zip(computed, reduced, strict=True) for stage in own & more}
    holders: defaultdict[int, dict[int, _Events]] = defaultdict(dict)
    for rank, row in enumerate(schedule.ops):
        for stage in computed[rank] | (reduced[rank] & common):
            holders[stage][rank] = []
        for index, op in enumerate(row):
            for event in _events(op):
                if rank in holders.get(event.stage, ()):
                    holders[event.stage][rank].append((index, event))
    return holders


def _events(op: Op) -> Sequence[_Event]:
    """Return the events in `op`; a sum over stages is no event of one stage."""
    match op:
        case Compute() | Overlap():
            return [part for part in computes(op) if part.phase in ENDS_MICROBATCH]
        case Reduce() if op.is_over_stages:
            return []
        case StageOp():
            return [op]
        case Send() | Recv():
            return []
        case _:
            assert_never(op)


def _applied(stage: int, rank: int, events: _Events) -> Iterator[Finding]:
    """Yield gradients without a Step, and Steps without a gradient."""
    steps = [at for at, (_, op) in enumerate(events) if isinstance(op, Step)]
    if not steps:
        yield Finding("structure", rank, None, f"{Step(stage)} is missing, which other stages or ranks have")
        return
    for before, at in pairwise([-1, *steps]):
        if not any(isinstance(op, Compute | Reduce) for _, op in events[before + 1 : at]):
            index, op = events[at]
            yield Finding("structure", rank, index, f"{op} has no backward of its stage to apply")
    for index, op in events[steps[-1] + 1 :]:
        if isinstance(op, Compute | Reduce):
            yield Finding("structure", rank, index, f"{op} comes after the last {Step(stage)}, which should apply it")
            return


def _shared(stage: int, replicas: dict[int, _Events]) -> Iterator[Finding]:
    """Yield faults of replicas that neither Reduce nor Average keeps equal."""
    kinds = {rank: {type(op) for _, op in events} for rank, events in replicas.items()}
    ranks = ", ".join(map(str, replicas))
    if any(Reduce in kind for kind in kinds.values()):
        yield from _reduced(stage, replicas)
    elif any(Average in kind for kind in kinds.values()):
        for rank, kind in kinds.items():
            if Average not in kind:
                yield Finding("structure", rank, None, f"{Average(stage)} is missing, which other ranks {ranks} have")
    elif any(Step in kind for kind in kinds.values()):
        rank, events = next((rank, events) for rank, events in replicas.items() if Step in kinds[rank])
        index, op = next((index, op) for index, op in events if isinstance(op, Step))
        text = f"{op} comes without {Reduce(stage)}, but the stage is on ranks {ranks}, whose weights would drift apart"
        yield Finding("structure", rank, index, text)


def _reduced(stage: int, replicas: dict[int, _Events]) -> Iterator[Finding]:
    """Yield replicas whose Reduces and Steps differ from the others', or do not follow one another."""
    orders = {
        rank: [event for event in events if isinstance(event[1], Reduce | Step)] for rank, events in replicas.items()
    }
    first = next(iter(orders))
    for rank, order in orders.items():
        for (index, here), (_, expected) in zip_longest(order, orders[first], fillvalue=(None, "no more")):
            if here != expected:
                text = f"there is {here} where rank {first} has {expected}, expected the same order on all its replicas"
                yield Finding("structure", rank, index, f"among the Reduces and Steps of stage {stage} {text}")
                return
    for rank, events in replicas.items():
        is_summed = False
        for index, op in events:
            if isinstance(op, Step) and not is_summed:
                yield Finding("structure", rank, index, f"{op} comes without {Reduce(stage)} before it")
            elif isinstance(op, Compute | Reduce) and is_summed:
                what = "would sum the same gradients again" if isinstance(op, Reduce) else "would not be summed"
                yield Finding("structure", rank, index, f"{op} comes between {Reduce(stage)} and Step: {what}")
            is_summed = isinstance(op, Reduce) or (is_summed and not isinstance(op, Step))
