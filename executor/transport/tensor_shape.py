"""The shape of the tensor that crosses a boundary between stages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorShape:
    """The shape, type and memory layout of a tensor that crosses a boundary.

    Attributes:
        strides: Memory layout without gaps, at both ends (default: row by row).
    """

    size: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None

    @property
    def num_elements(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.size)

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the elements of `tensor` in the order of `strides`, in one dimension; copy if the layout differs."""
        if self.strides is None:
            return tensor.contiguous().view(-1)
        if tensor.stride() != self.strides:
            tensor = tensor.new_empty_strided(self.size, self.strides).copy_(tensor)
        return tensor.as_strided((self.num_elements,), (1,))

    def of(self, flat: Tensor) -> Tensor:
        """Return the tensor that `flat` holds, in the same memory."""
        return flat.view(self.size) if self.strides is None else flat.as_strided(self.size, self.strides)
