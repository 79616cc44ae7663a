"""The mean of gradients: a Step uses the mean over the micro-batches whose backward ended since the last Step.

`step_sizes` counts these micro-batches, over all replicas of the stage. The sum becomes their mean in one of two ways,
with equal results up to rounding. Either the loss of a micro-batch is scaled by its share, which needs no extra op, or
the Step divides. Scaling needs a share that is the same at every stage, and lists that are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import final

from torch import nn

from pipesched.executor.core.schedule_queries import stage_ops
from pipesched.schedules import Schedule
from pipesched.schedules.ops import ENDS_MICROBATCH, Compute, Step


def step_sizes(schedule: Schedule, rank: int, stage: int) -> Iterator[int]:
    """Yield, for each Step of `stage`, the number of micro-batches, over all replicas, that ended since the last Step.

    Micro-batches after the last Step count as one more Step.
    """
    replicas = schedule.reducers.get(stage, (rank,))
    sizes = (_own_sizes(stage_ops(schedule, replica, stage)) for replica in replicas)
    return map(sum, zip_longest(*sizes, fillvalue=0))


def _own_sizes(ops: Iterable[Compute | Step]) -> Iterator[int]:
    size = 0
    for op in ops:
        if isinstance(op, Step):
            yield size
            size = 0
        elif op.phase in ENDS_MICROBATCH:
            size += 1
    if size:
        yield size


def loss_scales(schedule: Schedule) -> dict[int, float] | None:
    """Return each micro-batch's share of the mean of its Step, or None if the share differs between stages.

    It differs with replicas that step in rounds.
    """
    scales: dict[int, float] = {}
    for rank in range(schedule.num_ranks):
        for stage in schedule.stages_on(rank):
            sizes = step_sizes(schedule, rank, stage)
            size = next(sizes, 0)
            for op in stage_ops(schedule, rank, stage):
                if isinstance(op, Step):
                    size = next(sizes, 0)
                elif op.phase in ENDS_MICROBATCH and scales.setdefault(op.microbatch, 1 / size) != 1 / size:
                    return None
    return scales


@final
class GradientMean:
    """Turns the gradient sums of one stage into means.

    Args:
        scales: Factor on the loss of each micro-batch, or None if every Step divides.
        sizes: Returns the sizes of the stage's Steps, from the first; unused with `scales`.
    """

    def __init__(
        self, scales: Mapping[int, float] | None, sizes: Callable[[], Iterator[int]] = lambda: iter(())
    ) -> None:
        self._scales = scales
        self._sizes = sizes
        self._left: Iterator[int] = iter(())

    def begin(self) -> None:
        """Begin the list anew."""
        self._left = self._sizes()

    def loss_scale(self, microbatch: int) -> float:
        """Return the factor on a micro-batch's loss."""
        return 1.0 if self._scales is None else self._scales[microbatch]

    def divide(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients of the next Step, in place, unless the losses were scaled."""
        size = 1 if self._scales is not None else next(self._left)
        if size > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(size)
