"""What a rank holds of a micro-batch: from which op to which, how much, and whether that depends on a choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipesched.schedules import Compute, Phase
from pipesched.simulator.optimum.order_problem import OrderProblem


class HeldPart(NamedTuple):
    """What a micro-batch holds: since and until the start or end of a kind's op, how much, and on which condition.

    Attributes:
        since: A kind, and whether it is from its end on.
        until: A kind, and whether it is to its end.
        size: How much.
        rebuilt: The R of the stage; None: it has none.
        is_rebuilt: Whether it is held if the R is done; else if it is not.
    """

    since: tuple[int, bool]
    until: tuple[int, bool]
    size: int
    rebuilt: int | None = None
    is_rebuilt: bool = False


def held_parts(problem: OrderProblem, rank: int) -> Iterator[HeldPart]:
    """Yield what a micro-batch holds on a rank."""
    room = problem.room
    for kind in problem.of_rank[rank]:
        op = problem.kinds[kind].op
        if not isinstance(op, Compute) or op.phase is not Phase.FORWARD:
            continue
        saved, kept = room.saved[op.stage], room.kept[op.stage]
        whole, first, last, rebuilt = (
            problem.index_of.get(Compute(phase, op.stage, 0))
            for phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE)
        )
        used = whole if first is None else first
        assert used is not None, "a backward is whole or split"
        freed = last if last is not None and saved == kept else used
        if freed is not last and last is not None:
            yield HeldPart((used, True), (last, True), kept)
        if rebuilt is None or rebuilt in problem.optional:
            yield HeldPart((kind, False), (freed, True), saved, rebuilt)
        if rebuilt is not None:
            yield HeldPart((kind, False), (rebuilt, False), room.inputs[op.stage], rebuilt, is_rebuilt=True)
            yield HeldPart((rebuilt, False), (freed, True), saved, rebuilt, is_rebuilt=True)
