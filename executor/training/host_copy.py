"""Copies of small tensors to the host, which continues and reads them after they have arrived."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor


class HostCopy(ABC):
    """A copy of a tensor that is on its way to the host."""

    @abstractmethod
    def has_arrived(self) -> bool:
        """Return whether the numbers can be read without waiting."""

    @abstractmethod
    def numbers(self) -> list[float]:
        """Return the elements of the tensor; wait for them if need be."""


@final
class _OnHost(HostCopy):
    """A tensor that is on the host already."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def has_arrived(self) -> bool:
        return True

    def numbers(self) -> list[float]:
        numbers: list[float] = self._tensor.tolist()
        return numbers


@final
class _FromGpu(HostCopy):
    """A copy to pinned memory, behind the work that the current stream of the tensor's GPU has so far."""

    def __init__(self, tensor: Tensor) -> None:
        self._pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._pinned.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._event.record(torch.cuda.current_stream(tensor.device))

    def has_arrived(self) -> bool:
        has_arrived: bool = self._event.query()  # type: ignore[no-untyped-call]
        return has_arrived

    def numbers(self) -> list[float]:
        self._event.synchronize()
        numbers: list[float] = self._pinned.tolist()
        return numbers


def copy_to_host(tensor: Tensor) -> HostCopy:
    """Begin to copy `tensor` to the host."""
    return _FromGpu(tensor) if tensor.is_cuda else _OnHost(tensor)
