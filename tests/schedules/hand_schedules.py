"""Small schedules that no builder makes: a V, replicas, split backwards."""

from __future__ import annotations

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.ops import Compute, Op, Phase, Reduce, Step, backward, forward


def v_shaped() -> Schedule:
    """Stages 0 and 3 on rank 0, 1 and 2 on rank 1: the message between 1 and 2 stays where it is."""
    first: list[Op] = [forward(0, 0), forward(0, 1), forward(3, 0), backward(3, 0), forward(3, 1), backward(3, 1)]
    first += [backward(0, 0), backward(0, 1), Step(0), Step(3)]
    second: list[Op] = [forward(1, 0), forward(2, 0), forward(1, 1), forward(2, 1)]
    second += [backward(2, 0), backward(1, 0), backward(2, 1), backward(1, 1), Step(1), Step(2)]
    return make_schedule("v", 4, 2, [first, second])


def replicated() -> Schedule:
    """Two pipelines of two ranks (0, 1 and 2, 3) on two devices: even micro-batches here, odd ones there."""
    rows: list[list[Op]] = []
    for pipeline in range(2):
        for stage in range(2):
            row: list[Op] = []
            for i in (pipeline, pipeline + 2):
                row += [forward(stage, i), backward(stage, i)]
            rows.append([*row, Reduce(stage), Step(stage)])
    return make_schedule("replicated", 2, 4, rows, (0, 1, 0, 1))


def mixed_backwards() -> Schedule:
    """One stage that splits the backward of micro-batch 0 and not that of 1, as PyTorch's ZBV does."""
    split = [Compute(Phase.BACKWARD_INPUT, 0, 0), Compute(Phase.BACKWARD_WEIGHT, 0, 0)]
    return make_schedule("mixed", 1, 3, [[forward(0, 0), *split, *_pair(1), *_pair(2)]])


def _pair(microbatch: int) -> list[Op]:
    return [forward(0, microbatch), backward(0, microbatch)]
