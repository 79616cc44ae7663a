"""Random op lists that can finish, and stages of a few ops: small runs for properties of transports."""

from __future__ import annotations

import torch

from pipesched.executor.core import Stage
from pipesched.schedules import make_schedule
from pipesched.schedules.ops import Phase, Step, backward, forward


def random_schedule(chance, num_ranks, num_microbatches, chunks):
    """Draw an order: of all computations whose inputs are there, one after the other, whichever rank has it."""
    num_stages = num_ranks * chunks
    lists = [[] for _ in range(num_ranks)]
    left = {(phase, stage, i) for phase in "FB" for stage in range(num_stages) for i in range(num_microbatches)}
    while left:
        ready = [
            (phase, stage, i)
            for phase, stage, i in sorted(left)
            if (phase == "F" and (stage == 0 or ("F", stage - 1, i) not in left))
            or (phase == "B" and ("F", stage, i) not in left
                and (stage == num_stages - 1 or ("B", stage + 1, i) not in left))
        ]  # fmt: skip
        chosen = phase, stage, i = chance.choice(ready)
        left.remove(chosen)
        lists[stage % num_ranks].append(forward(stage, i) if phase == "F" else backward(stage, i))
    for rank, ops in enumerate(lists):
        ops += [Step(stage) for stage in range(rank, num_stages, num_ranks)]
    return make_schedule("random", num_stages, num_microbatches, lists)


class SmallStage(Stage):
    """A stage of one weight, written out: y = w x, whose backward reads x and w and adds to the gradient of w."""

    def __init__(self, index, num_stages):
        self.weight = torch.full((4,), 1.0 + index)
        self.gradient = torch.zeros(4)
        self._is_last = index == num_stages - 1
        self._inputs = {}

    def begin(self):
        self._inputs.clear()

    def compute(self, op, received, target):
        if op.phase is Phase.FORWARD:
            self._inputs[op.microbatch] = received
            return self.weight * received
        gradient = torch.ones(4) if self._is_last else received
        self.gradient += gradient * self._inputs.pop(op.microbatch)
        return gradient * self.weight

    def update(self, op):
        assert isinstance(op, Step)
        self.weight -= 0.1 * self.gradient
        self.gradient.zero_()
