"""Gradient buckets: the gradients of a stage in a few flat tensors, which are reduced over its replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_BUCKET_BYTES = 25 * 2**20
"""Most bytes of a bucket, as in PyTorch's DistributedDataParallel."""


class Bucket:
    """The gradients of some parameters of one dtype.

    The flat tensor ends with a flag per parameter: 1 where it has a gradient. Where no replica has one there is none
    after the reduction either, so that the optimizer passes over the parameter as it does without replicas; where only
    some have one, the others count as zero.

    A replica that has every gradient knows the sums of the flags without reading them: none is zero. So the host waits
    for a GPU only where this replica lacks a gradient.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._has_all = False

    def flatten(self) -> Tensor:
        """Take the gradients, and return them and flags, shape (elements of all parameters + number of parameters,).

        The tensor is new, and the caller's to write to. Until `unflatten` the parameters have no gradients, so that
        they are not held twice.
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
        """Take the gradients from `summed`, of which they stay views: from then on it is the optimizer's alone."""
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
