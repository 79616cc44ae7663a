"""The mean of gradients: a Step moves the weights by the mean over the micro-batches that came back since the last one.

`step_sizes` counts those micro-batches, of all replicas of the stage. The sum becomes their mean in one of two ways,
with the same result but for rounding: a micro-batch's loss is scaled by its share, which costs no op of its own, or the
Step divides. The first needs a share that is the same at every stage, and lists that are read before they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import final

from torch import nn

from pipesched.executor.core.schedule_queries import stage_ops
from pipesched.schedules import ENDS_MICROBATCH, Compute, Schedule, Step


def step_sizes(schedule: Schedule, rank: int, stage: int) -> Iterator[int]:
    """Yield, for each Step of `stage`, how many micro-batches have come back since the last one, to all replicas.

    What no Step follows counts as if one did.
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
    """Return each micro-batch's share of the mean of its Step; None where that differs from stage to stage.

    It does with replicas that step in rounds.
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
    """Makes the gradients of one stage a mean.

    Args:
        scales: What each micro-batch's loss counts; None: every Step divides.
        sizes: Begins the sizes of the stage's Steps anew; not asked where losses are scaled.
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
        """Return the factor of a micro-batch's loss."""
        return 1.0 if self._scales is None else self._scales[microbatch]

    def divide(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients that the next Step takes, in place, unless the losses were scaled."""
        size = 1 if self._scales is not None else next(self._left)
        if size > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(size)
