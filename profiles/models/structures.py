"""The structure of a batch: a dictionary, tuple or list of tensors, and the `Value` of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from numpy import ndarray
from torch import Tensor

from pipesched.profiles import ProfileError
from pipesched.profiles.models.values import Value, tensors_of


@final
@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a tensor in a structure."""

    index: int


@final
@dataclass(frozen=True, slots=True)
class Structure:
    """The dictionaries, tuples, lists and constants around the tensors of a `Value`.

    Attributes:
        template: The structure, with a place instead of each tensor.
    """

    template: Any

    @property
    def is_bare(self) -> bool:
        """Whether it is a tensor alone, or a tuple or list of one."""
        template = self.template
        if isinstance(template, (tuple, list)) and len(template) == 1:
            template = template[0]
        return isinstance(template, _Place)

    def restored(self, value: Value) -> Any:
        """Return the structure with the tensors of `value`."""
        return _filled(self.template, tensors_of(value))


def flattened(tree: Any) -> tuple[Value, Structure]:
    """Return the tensors of nested dictionaries, tuples and lists as a `Value`, and their structure.

    The value of one tensor is this tensor. Everything else, such as None and numbers, is a constant of the structure.

    Raises:
        ProfileError: There is a numpy array, which is neither tensor nor constant.
    """
    tensors: list[Tensor] = []
    template = _emptied(tree, tensors)
    return (tensors[0] if len(tensors) == 1 else tuple(tensors)), Structure(template)


def _emptied(tree: Any, tensors: list[Tensor]) -> Any:
    match tree:
        case Tensor():
            tensors.append(tree)
            return _Place(len(tensors) - 1)
        case ndarray():
            raise ProfileError("got a numpy array in a batch, expected tensors; try torch.from_numpy")
        case Mapping():
            return {key: _emptied(item, tensors) for key, item in tree.items()}
        case tuple() | list():
            return _sequence(tree, [_emptied(item, tensors) for item in tree])
        case _:
            return tree


def _filled(template: Any, tensors: list[Tensor]) -> Any:
    match template:
        case _Place():
            return tensors[template.index]
        case dict():
            return {key: _filled(item, tensors) for key, item in template.items()}
        case tuple() | list():
            return _sequence(template, [_filled(item, tensors) for item in template])
        case _:
            return template


def _sequence(like: Any, items: list[Any]) -> Any:
    """Return a list, tuple or named tuple of `items`, as `like`."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
