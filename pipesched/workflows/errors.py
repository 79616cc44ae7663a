"""What is wrong with an argument of the library, by its name in Python, and the refusals that many functions share."""

from __future__ import annotations

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


def require_at_least(name: str, value: object, least: int) -> None:
    """Refuse what is no integer, or a smaller one than `least`.

    Raises:
        ArgumentError: It is.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ArgumentError(f"{name}: got {_shown(value)}, expected an integer of at least {least}")
    if index(value) < least:
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


def require_kind(name: str, value: object, kinds: type | UnionType, expected: str) -> None:
    """Refuse what is of none of `kinds`.

    Args:
        name: Of the argument.
        kinds: As `isinstance` takes them.
        expected: What they are, for the message.

    Raises:
        ArgumentError: It is of another.
    """
    if not isinstance(value, kinds):
        raise ArgumentError(f"{name}: got {_shown(value)}, expected {expected}")


def _shown(value: object) -> str:
    """Return a value as it is written, of a larger one its type alone: a list of ops fills a book."""
    return repr(value) if isinstance(value, str | int | float | None) else f"{type(value).__name__}(..)"
