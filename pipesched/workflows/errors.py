"""What is wrong with an argument of the library, by its name in Python, and the refusals that many functions share."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import SupportsIndex


class ArgumentError(ValueError):
    """An argument, or a combination of arguments, makes no sense: ``name: got .., expected ..; try ..``."""


def require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse what is none of `choices`, as ``typing.get_args`` of a Literal returns them.

    Raises:
        ArgumentError: It is another value.
    """
    if value not in choices:
        raise ArgumentError(f"{name}: got {value!r}, expected one of {', '.join(map(str, choices))}")


def require_at_least(name: str, value: object, least: int) -> None:
    """Refuse what is no integer, or a smaller one than `least`.

    Raises:
        ArgumentError: It is.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ArgumentError(f"{name}: got {value!r}, expected an integer of at least {least}")
    if index(value) < least:
        raise ArgumentError(f"{name}: got {value}, expected at least {least}")


def require_names(name: str, value: object) -> None:
    """Refuse a bare string where a list of strings is expected: it would be read letter by letter.

    Raises:
        ArgumentError: It is one.
    """
    if isinstance(value, str):
        raise ArgumentError(f"{name}: got {value!r}, expected a list; try [{value!r}]")
