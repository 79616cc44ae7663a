"""Errors of the library's arguments, which name the argument in Python, and the refusals that many functions share."""

from __future__ import annotations

import math
from collections.abc import Collection
from operator import index
from types import UnionType
from typing import SupportsIndex

NETWORK_EXPECTED = "NetworkOptions; try pipesched.NetworkOptions(protocol='eager')"


class ArgumentError(ValueError):
    """An argument, or a combination of arguments, makes no sense: ``name: got .., expected ..; try ..``."""


def require_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Refuse what is none of `choices`, as ``typing.get_args`` of a Literal returns them.

    Raises:
        ArgumentError: It is another value.
    """
    if value not in choices:
        raise ArgumentError(f"{name}: got {_shown(value)}, expected one of {', '.join(map(str, choices))}")


def require_integer(name: str, value: object, expected: str = "an integer") -> int:
    """Return an integer of Python, of what is one; refuse anything else.

    Raises:
        ArgumentError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ArgumentError(f"{name}: got {_shown(value)}, expected {expected}")
    return index(value)


def require_at_least(name: str, value: object, least: int) -> None:
    """Refuse what is no integer, or a smaller one than `least`.

    Raises:
        ArgumentError: It is.
    """
    if require_integer(name, value, f"an integer of at least {least}") < least:
        raise ArgumentError(f"{name}: got {value}, expected at least {least}")


def require_names(name: str, value: object) -> None:
    """Refuse what is no list: also a bare string, which would be read letter by letter, and what can be read but once.

    Raises:
        ArgumentError: It is none.
    """
    if isinstance(value, str):
        raise ArgumentError(f"{name}: got {value!r}, expected a list; try [{value!r}]")
    if not isinstance(value, Collection):
        raise ArgumentError(f"{name}: got {_shown(value)}, expected a list")


def require_each_name(name: str, values: Collection[object], advice: str) -> None:
    """Refuse what is no list of at least one name; `advice` is one that may be.

    Raises:
        ArgumentError: It is something else.
    """
    require_names(name, values)
    if not len(values):
        raise ArgumentError(f"{name}: got none, expected names; try {advice}")
    for value in values:
        require_kind(name, value, str, f"names; try {advice}")


def require_each_at_least(name: str, values: Collection[object], least: int) -> None:
    """Refuse what is no list of at least one integer, each of at least `least`.

    Raises:
        ArgumentError: It is something else.
    """
    require_names(name, values)
    if not len(values):
        raise ArgumentError(f"{name}: got an empty list, expected at least one; try [{least}]")
    for value in values:
        require_at_least(name, value, least)


def require_rate(name: str, value: object) -> None:
    """Refuse what is no number above 0.

    Raises:
        ArgumentError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ArgumentError(f"{name}: got {_shown(value)}, expected a number above 0")


def require_number(name: str, value: object) -> None:
    """Refuse what is no finite number of at least 0.

    Raises:
        ArgumentError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ArgumentError(f"{name}: got {_shown(value)}, expected a finite number of at least 0")


def require_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ArgumentError: It is another value.
    """
    require_kind(name, value, bool, "True or False")


def require_flags(name: str, values: Collection[object]) -> None:
    """Refuse what is no list of at least one of True and False.

    Raises:
        ArgumentError: It is something else.
    """
    require_names(name, values)
    if not len(values):
        raise ArgumentError(f"{name}: got an empty list, expected at least one; try [False]")
    for value in values:
        require_flag(name, value)


def require_callable(name: str, value: object) -> None:
    """Refuse what cannot be called.

    Raises:
        ArgumentError: It cannot.
    """
    if not callable(value):
        raise ArgumentError(f"{name}: got {_shown(value)}, expected a function")


def require_kind(name: str, value: object, kinds: type | UnionType, expected: str) -> None:
    """Refuse what is of none of `kinds`.

    Args:
        name: Name of the argument.
        kinds: The kinds, as `isinstance` takes them.
        expected: What they are, for the message.

    Raises:
        ArgumentError: It is of another.
    """
    if not isinstance(value, kinds):
        raise ArgumentError(f"{name}: got {_shown(value)}, expected {expected}")


def _shown(value: object) -> str:
    """Return a value as it is written, of a larger one its type alone: a list of ops fills a book."""
    return repr(value) if isinstance(value, str | int | float | None) else f"{type(value).__name__}(..)"
