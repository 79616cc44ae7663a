"""The gradients of a stage: buckets that are summed over its replicas, their norm, and their mean over micro-batches.

Parameters that stages share (ties) are summed over these stages too, all in one bucket. A stage adds zeros for
parameters that it lacks. After the sum, all copies of a parameter have the same gradient, so equal optimizers keep them
equal. The norm counts each copy once.

A Step uses the mean over the micro-batches whose backward ended since the last Step. `step_sizes` counts these
micro-batches, over all replicas of the stage. The sum becomes their mean in one of two ways, with equal results up to
rounding. Either the loss of a micro-batch is scaled by its share, which needs no extra op, or the Step divides. Scaling
needs a share that is the same at every stage, and lists that are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol, final

import torch
from torch import Tensor, nn

from pipesched.executor import ExecutionError
from pipesched.executor.core.schedule_queries import stage_ops
from pipesched.schedules import Schedule
from pipesched.schedules.ops import ENDS_MICROBATCH, Compute, Step

_NORM_EPSILON = 1e-6
"""Added to a norm before a division by it, as in ``torch.nn.utils.clip_grad_norm_``."""
_BUCKET_BYTES = 25 * 2**20
"""Most bytes of a bucket, as in PyTorch's DistributedDataParallel."""


class Term(Protocol):
    """A tensor of a stage that is summed over other ranks, or over other stages."""

    def flatten(self) -> Tensor:
        """Return the tensor to sum, in one dimension."""

    def unflatten(self, summed: Tensor) -> None:
        """Take the sum."""


@dataclass(frozen=True, slots=True, eq=False)
class StageSums:
    """The sums of a stage with other stages: of the norm by which gradients are clipped, and of shared parameters.

    Attributes:
        max_norm: Largest norm of the gradients of the whole model, as in ``torch.nn.utils.clip_grad_norm_``; None: they
            stay as they are.
        num_replicas: Ranks with equal gradients of the stage, each of which adds its share.
        device: Device of the stage.
        tied: All parameters that some stages share, in the order of the model; for parameters that the stage lacks,
            tensors of their shapes.
        copies: The stage's parameters that an earlier stage has too. Only the earlier stage counts their norm.
    """

    max_norm: float | None = None
    num_replicas: int = 1
    device: torch.device | str = "cpu"
    tied: Sequence[Tensor] = ()
    copies: Collection[Tensor] = frozenset()

    def tied_bucket(self) -> Bucket:
        """Return the bucket of all shared parameters; the gradients of parameters that the stage lacks are dropped.

        Raises:
            ExecutionError: No stages share parameters.
        """
        if not self.tied:
            raise ExecutionError(
                "got a sum of tied stages without shared parameters, expected stages that share parameters; leave "
                "REDUCE_TIED out of the lists"
            )
        held = [p if isinstance(p, nn.Parameter) else p.detach() for p in self.tied]
        return Bucket(held, self.num_replicas)


@final
class SquaredNorm:
    """The squared norm of the gradients of a stage; its sum over all stages gives the factor that clips them.

    Args:
        parameters: The parameters of the stage.
        sums: The largest norm, and the parameters whose gradients are clipped, but not counted.
    """

    def __init__(self, parameters: Sequence[Tensor], sums: StageSums) -> None:
        graded = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        self._gradients = [gradient for _, gradient in graded]
        self._counted = [gradient for parameter, gradient in graded if parameter not in sums.copies]
        self._sums = sums

    def flatten(self) -> Tensor:
        """Return the stage's part of the squared norm, shape (1,) and float64.

        Raises:
            ExecutionError: A gradient is sparse.
        """
        _require_dense(self._counted)
        norms = [torch.linalg.vector_norm(g, dtype=_sum_dtype(g)).to(torch.float64) for g in self._counted]
        none = torch.zeros((), dtype=torch.float64, device=self._sums.device)
        squares = torch.stack(norms).square().sum() if norms else none
        return (squares / self._sums.num_replicas).reshape(1)

    def unflatten(self, summed: Tensor) -> None:
        """Scale the gradients by the smaller of 1 and the largest norm over the norm, in place."""
        if self._sums.max_norm is None:
            return
        factor = (self._sums.max_norm / (summed.sqrt() + _NORM_EPSILON)).clamp(max=1.0)
        for gradient in self._gradients:
            gradient.mul_(factor.to(gradient.dtype))


def _sum_dtype(gradient: Tensor) -> torch.dtype:
    """Return the type in which squares of a gradient are added: at least float32."""
    return torch.promote_types(gradient.dtype, torch.float32)


def _require_dense(gradients: Iterable[Tensor]) -> None:
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            raise ExecutionError(
                f"got a sparse gradient of {tuple(gradient.shape)}, expected a dense one where gradients are summed or "
                "clipped; try nn.Embedding(sparse=False)"
            )


class Bucket:
    """The gradients of some parameters of one dtype.

    The flat tensor ends with a flag per parameter: 1 if it has a gradient. If no replica has a gradient of a parameter,
    it has no gradient after the reduction either, and the optimizer skips it as without replicas. If only some replicas
    have one, the missing gradients count as zero.

    A replica with every gradient does not read the sums of the flags: all are positive. So the host waits for a GPU
    only if this replica lacks a gradient.

    Args:
        parameters: The parameters.
        num_replicas: Ranks that add equal gradients, which count once.
    """

    def __init__(self, parameters: Sequence[Tensor], num_replicas: int = 1) -> None:
        self._parameters = parameters
        self._num_replicas = num_replicas
        self._has_all = False

    def flatten(self) -> Tensor:
        """Take the gradients; return them and the flags, shape (elements of all parameters + number of parameters,).

        The caller owns the tensor, which is new. Until `unflatten` the parameters have no gradients, so that they are
        not held twice.

        Raises:
            ExecutionError: A gradient is sparse.
        """
        _require_dense(p.grad for p in self._parameters if p.grad is not None)
        has = [p.grad is not None for p in self._parameters]
        self._has_all = all(has)
        first = self._parameters[0]
        flags = first.new_ones(len(has)) if self._has_all else first.new_tensor(has)
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters)
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), flags])
        for parameter in self._parameters:
            parameter.grad = None
        return flat if self._num_replicas == 1 else flat.div_(self._num_replicas)

    def unflatten(self, summed: Tensor) -> None:
        """Set the gradients to views of `summed`; from then on only the optimizer may write to it."""
        sizes = [*(p.numel() for p in self._parameters), len(self._parameters)]
        *gradients, flags = summed.split(sizes)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        has = [True] * len(self._parameters) if self._has_all else flags.tolist()
        for parameter, gradient, flag in zip(self._parameters, gradients, has, strict=True):
            parameter.grad = gradient.view_as(parameter) if flag else None


def buckets(parameters: Sequence[Tensor]) -> Iterator[Bucket]:
    """Yield `parameters` in buckets, in an order that is the same for every replica."""
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        parameters_of_bucket: list[Tensor] = []
        num_bytes = 0
        for parameter in (parameter for parameter in parameters if parameter.dtype is dtype):
            if parameters_of_bucket and num_bytes + parameter.nbytes > _BUCKET_BYTES:
                yield Bucket(parameters_of_bucket)
                parameters_of_bucket, num_bytes = [], 0
            parameters_of_bucket.append(parameter)
            num_bytes += parameter.nbytes
        yield Bucket(parameters_of_bucket)


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
    """Return each micro-batch's share of the mean of its Step.

    The result is None for generated lists, and if the share differs between stages. It differs if replicas step in
    rounds.
    """
    if not schedule.is_held:
        return None
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

    Attributes:
        num_lists: Number of runs of the list per Step; all but the last run have no Step.
    """

    def __init__(
        self, scales: Mapping[int, float] | None, sizes: Callable[[], Iterator[int]] = lambda: iter(())
    ) -> None:
        self._scales = scales
        self._sizes = sizes
        self._left: Iterator[int] = iter(())
        self._are_means = False
        self.num_lists = 1

    def begin(self) -> None:
        """Begin the list anew."""
        self._left = self._sizes()
        self._are_means = False

    def loss_scale(self, microbatch: int) -> float:
        """Return the factor on a micro-batch's loss."""
        return 1.0 if self._scales is None else self._scales[microbatch]

    def divide(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients of the next Step, in place and once, unless the losses were scaled."""
        if self._are_means:
            return
        self._are_means = True
        size = self.num_lists * (1 if self._scales is not None else next(self._left))
        if size > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(size)

    def end_step(self) -> None:
        """End a Step: the gradients that follow are sums again."""
        self._are_means = False
