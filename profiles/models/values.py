"""A value that crosses a boundary between two layers: a tensor, or several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

from torch import Tensor

Value: TypeAlias = Tensor | tuple[Tensor | None, ...]
"""A tensor, or a tuple of tensors of any types, in which None stands for an absent one."""


def is_value(made: Any) -> TypeGuard[Value]:
    """Return whether `made`, the result of a layer, can cross a boundary."""
    if isinstance(made, tuple):
        return all(item is None or isinstance(item, Tensor) for item in made)
    return isinstance(made, Tensor)


def tensors_of(value: Value) -> list[Tensor]:
    """Return the tensors of a value, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for tensor in value if tensor is not None]


def gets_gradient(value: Value, tensor: Tensor) -> bool:
    """Return whether the gradient of `tensor`, a part of `value`, is sent back over the boundary that `value` crossed.

    A tensor alone gets a gradient even if nothing before the boundary learns from it.
    """
    return tensor.is_floating_point() if tensor is value else tensor.requires_grad


def mapped(change: Callable[[Tensor], Tensor], value: Value) -> Value:
    """Return the value of the changed tensors."""
    if isinstance(value, Tensor):
        return change(value)
    return tuple(None if tensor is None else change(tensor) for tensor in value)


def detached(value: Value) -> Value:
    """Return the value without its graph; tensors of a tuple keep their `requires_grad`.

    A tensor alone requires no gradient.
    """
    if isinstance(value, Tensor):
        return value.detach()
    return mapped(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), value)


def microbatch(value: Value, index: int, count: int) -> Value:
    """Return micro-batch `index` of `count` equal ones: a part of dimension 0 of each tensor, as views."""

    def part(tensor: Tensor) -> Tensor:
        size = len(tensor) // count
        return tensor[index * size : (index + 1) * size]

    return mapped(part, value)
