"""Equal layers of a model, and a short chain that has every kind of layer.

    model   E B B B B B B B B H         kinds   E B H
    chain   E B         B B B H         a few layers of each kind, each behind the same kind as in the model

Two layers are equal if they run the same ops on equal tensors; their weights may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from pipesched.profiles.models import Value

ValueLayout: TypeAlias = tuple[tuple[Any, ...] | None, ...]
"""Shape, strides, type, storage and whether it requires a gradient, of each tensor of a value."""


def value_layout(value: Value) -> ValueLayout:
    """Return the properties of `value` other than its elements; its storages are numbered from 0."""
    tensors = value if isinstance(value, tuple) else (value,)
    numbers: dict[int, int] = {}
    return (
        (isinstance(value, tuple),),
        *(
            None
            if tensor is None
            else (
                tuple(tensor.shape),
                tensor.stride(),
                tensor.dtype,
                tensor.requires_grad,
                tensor.storage_offset(),
                tensor.untyped_storage().nbytes(),
                numbers.setdefault(tensor.untyped_storage().data_ptr(), len(numbers)),
            )
            for tensor in tensors
        ),
    )


def is_alike(first: Any, second: Any) -> bool:
    """Return whether two builders of layers, or keys of layers, are equal but for the weights.

    Equal are calls of one function with equal arguments. Two modules are equal if they have the same class, equal
    attributes, and parameters and buffers of the same shapes.
    """
    return _Comparison().finds_equal(first, second)


class _Comparison:
    """A comparison of two objects; a module or tensor shared inside one must be shared in the same way in the other."""

    def __init__(self) -> None:
        self._pairs: set[tuple[int, int]] = set()
        self._paired: tuple[set[int], set[int]] = set(), set()

    def finds_equal(self, first: Any, second: Any) -> bool:
        """Return whether two objects are equal but for the numbers in tensors."""
        if type(first) is not type(second):
            return False
        if isinstance(first, Tensor | nn.Module):
            pair = id(first), id(second)
            if any(key in paired for key, paired in zip(pair, self._paired, strict=True)):
                return pair in self._pairs
            self._pairs.add(pair)
            for key, paired in zip(pair, self._paired, strict=True):
                paired.add(key)
        return first is second or self._has_equal_parts(first, second)

    def _has_equal_parts(self, first: Any, second: Any) -> bool:
        match first:
            case Tensor():
                return _form(first) == _form(second)
            case nn.Module():
                return self.finds_equal(vars(first), vars(second))
            case partial():
                return self.finds_equal(_call(first), _call(second))
            case dict():
                return [*first] == [*second] and self.finds_equal([*first.values()], [*second.values()])
            case list() | tuple():
                return len(first) == len(second) and all(map(self.finds_equal, first, second))
        try:
            return bool(first == second)
        except Exception:  # noqa: BLE001 -- a user's object may raise anything
            return False


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _call(call: partial[Any]) -> tuple[Any, ...]:
    return call.func, call.args, call.keywords


def short_chain(kinds: Sequence[int], copies: int) -> list[int]:
    """Return the numbers of the layers of a chain with every kind; each layer gets the input that it had before.

    Args:
        kinds: Kind of each layer of the model.
        copies: Layers of each kind in the chain; all of them if the model has fewer.
    """
    missing = {kind: min(copies, count) for kind, count in Counter(kinds).items()}
    left, chain, index = Counter(kinds), list[int](), 0
    while index < len(kinds):
        kind = kinds[index]
        chain.append(index)
        missing[kind] -= 1
        left[kind] -= 1
        following = index + 1
        for last in range(index + 1, len(kinds)):  # leave out the layers up to `last`, which is of the same kind
            left[kinds[last]] -= 1
            if left[kinds[last]] < missing[kinds[last]]:
                break
            if kinds[last] == kind:
                following = last + 1
        left = Counter(kinds[following:])
        index = following
    return chain
