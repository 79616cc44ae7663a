"""The parts of a rank's memory: from which op to which, their size, and whether they depend on a choice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from pipesched.schedules.ops import Compute, Phase, Step
from pipesched.simulator.optimum.order_problem import OrderProblem, is_phase


class HeldPart(NamedTuple):
    """Memory that a micro-batch holds from the start or end of one op to the start or end of another.

    Attributes:
        since: The kind that allocates it, and whether at its end.
        until: The kind that frees it, and whether at its end.
        size: Size in units of the room.
        rebuilt: The R of the stage, or None without R.
        is_rebuilt: Whether it is held if the R is done; otherwise it is held if the R is not done.
        is_shared: Whether all micro-batches share it, from the op of the first to the op of the last one.
    """

    since: tuple[int, bool]
    until: tuple[int, bool]
    size: int
    rebuilt: int | None = None
    is_rebuilt: bool = False
    is_shared: bool = False

    def pairs(self, num_microbatches: int) -> Iterator[tuple[int, int]]:
        """Yield (micro-batch whose op starts to hold the part, micro-batch whose op frees it)."""
        return iter([(0, num_microbatches - 1)]) if self.is_shared else ((k, k) for k in range(num_microbatches))


def held_parts(problem: OrderProblem, rank: int) -> Iterator[HeldPart]:
    """Yield the parts of a rank's memory, without parts of size 0."""
    return (part for part in chain(_activations(problem, rank), _beside(problem, rank)) if part.size)


def _activations(problem: OrderProblem, rank: int) -> Iterator[HeldPart]:
    for kind in problem.of_rank[rank]:
        op = problem.kinds[kind].op
        if not is_phase(op, Phase.FORWARD):
            continue
        own = problem.room.stages[op.stage]
        used, last = _backward(problem, op.stage), _kind(problem, Phase.BACKWARD_WEIGHT, op.stage)
        rebuilt = _kind(problem, Phase.RECOMPUTE, op.stage)
        freed = last if last is not None and own.saved == own.kept else used
        if freed is not last and last is not None:
            yield HeldPart((used, True), (last, True), own.kept)
        if rebuilt is None or rebuilt in problem.optional:
            yield HeldPart((kind, False), (freed, True), own.saved, rebuilt)
        if rebuilt is not None:
            yield HeldPart((kind, False), (rebuilt, False), own.inputs, rebuilt, is_rebuilt=True)
            yield HeldPart((rebuilt, False), (freed, True), own.saved, rebuilt, is_rebuilt=True)


def _beside(problem: OrderProblem, rank: int) -> Iterator[HeldPart]:
    """Yield the parts of a rank's memory other than activations; every order of the ops has these parts."""
    index_of = problem.index_of
    for kind in problem.of_rank[rank]:
        op = problem.kinds[kind].op
        if not is_phase(op, Phase.FORWARD):
            continue
        stage, used = op.stage, _backward(problem, op.stage)
        own = problem.room.stages[stage]
        last = _kind(problem, Phase.BACKWARD_WEIGHT, stage)
        ended = used if last is None else last
        yield HeldPart((ended, True), (index_of.get(Step(stage), ended), True), own.gradients, is_shared=True)
        yield HeldPart((used, False), (used, True), own.inside)
        following = _kind(problem, Phase.FORWARD, stage + 1)
        if following is not None:
            is_sent = problem.kinds[following].rank != rank
            yield HeldPart((kind, True), (following, is_sent), own.outputs)
        if stage:
            yield HeldPart((used, True), (_backward(problem, stage - 1), True), own.handed)


def _backward(problem: OrderProblem, stage: int) -> int:
    whole, first = (_kind(problem, phase, stage) for phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT))
    used = whole if first is None else first
    assert used is not None, "a backward is whole or split"
    return used


def _kind(problem: OrderProblem, phase: Phase, stage: int) -> int | None:
    return problem.index_of.get(Compute(phase, stage, 0))
