"""Gradient buckets: the gradients of a stage in a few flat tensors, which are reduced over its replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_BUCKET_BYTES = 25 * 2**20
"""Most bytes of a bucket, as in PyTorch's DistributedDataParallel."""


class Bucket:
    """The gradients of some parameters of one dtype.

    The flat tensor ends with a flag per parameter: 1 if it has a gradient. If no replica has a gradient of a parameter,
    it has no gradient after the reduction either, and the optimizer skips it as without replicas. If only some replicas
    have one, the missing gradients count as zero.

    A replica with every gradient does not read the sums of the flags: all are positive. So the host waits for a GPU
    only if this replica lacks a gradient.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._has_all = False

    def flatten(self) -> Tensor:
        """Take the gradients; return them and the flags, shape (elements of all parameters + number of parameters,).

        The caller owns the tensor, which is new. Until `unflatten` the parameters have no gradients, so that they are
        not held twice.
        """
        has = [p.grad is not None for p in self._parameters]
        self._has_all = all(has)
        first = self._parameters[0]
        flags = first.new_ones(len(has)) if self._has_all else first.new_tensor(has)
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters)
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), flags])
        for parameter in self._parameters:
            parameter.grad = None
        return flat

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
