"""Errors of the library's arguments, which name the argument in Python, and the refusals that many functions share."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Hashable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any

from pipesched.schedules import MAX_NUMBER, OneLineError, integer, shown

MAX_INT64 = 2**63 - 1
"""Most bytes, and the largest seed."""

MAX_PROCESSES = 1024
"""Most processes that a search may have."""


class ArgumentError(OneLineError):
    """An argument, or a combination of arguments, makes no sense: ``name: got .., expected ..; try ..``."""


def require_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Refuse what is none of `choices`, as ``typing.get_args`` of a Literal returns them.

    Raises:
        ArgumentError: It is another value.
    """
    if not isinstance(value, Hashable) or value not in choices:
        raise ArgumentError(f"{name}: got {_shown(value)}, expected one of {', '.join(map(str, choices))}")


def require_integer(name: str, value: object, expected: str = "an integer") -> int:
    """Return an integer of Python, of what is one, as one of numpy's is; refuse anything else.

    Raises:
        ArgumentError: It is none.
    """
    number = integer(value)
    if number is None:
        raise ArgumentError(f"{name}: got {_shown(value)}, expected {expected}")
    return number


def require_at_least(name: str, value: object, least: int, most: int = MAX_NUMBER) -> int:
    """Return an integer of Python; refuse what is none, or not from `least` to `most`.

    Raises:
        ArgumentError: It is not.
    """
    advice = ", in bytes; try 14 * 10**9" if name.endswith("_bytes") and isinstance(value, str) else ""
    number = require_integer(name, value, f"an integer of at least {least}{advice}")
    if number < least:
        raise ArgumentError(f"{name}: got {shown(number)}, expected at least {least}")
    if number > most:
        raise ArgumentError(f"{name}: got {shown(number)}, expected at most {most}")
    return number


def require_optional(name: str, value: object, least: int, most: int = MAX_NUMBER) -> int | None:
    """Return what `require_at_least` does, or None of None.

    Raises:
        ArgumentError: It is neither None nor such an integer.
    """
    return None if value is None else require_at_least(name, value, least, most)


def require_names(name: str, value: object) -> tuple[Any, ...]:
    """Return what is in a list; refuse also a bare string, read letter by letter, and what can be read but once.

    Raises:
        ArgumentError: It is none.
    """
    if isinstance(value, str):
        parts = ", ".join(map(shown, value.split(",")))
        raise ArgumentError(f"{name}: got {shown(value)}, expected a list; try [{parts}]")
    if isinstance(value, Collection):
        with suppress(TypeError):  # an array without dimensions
            return tuple(value)
    raise ArgumentError(f"{name}: got {_shown(value)}, expected a list")


def require_some(name: str, value: object, advice: str) -> tuple[Any, ...]:
    """Return what is in a list of at least one thing; `advice` is one that may be.

    Raises:
        ArgumentError: It is none, or empty.
    """
    values = require_names(name, value)
    if not values:
        raise ArgumentError(f"{name}: got an empty list, expected at least one; try {advice}")
    return values


def require_each_name(name: str, values: object, advice: str) -> tuple[str, ...]:
    """Return a list of at least one name; refuse anything else; `advice` is one that may be.

    Raises:
        ArgumentError: It is something else.
    """
    names = require_names(name, values)
    if not names:
        raise ArgumentError(f"{name}: got none, expected names; try {advice}")
    for value in names:
        require_kind(name, value, str, f"names; try {advice}")
    return names


def require_each_at_least(name: str, values: object, least: int, most: int = MAX_NUMBER) -> tuple[int, ...]:
    """Return a list of at least one integer, each from `least` to `most`, as those of Python.

    Raises:
        ArgumentError: It is something else.
    """
    return tuple(require_at_least(name, value, least, most) for value in require_some(name, values, f"[{least}]"))


def require_rate(name: str, value: object) -> None:
    """Refuse what is no number above 0.

    Raises:
        ArgumentError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _most(value):
        raise ArgumentError(f"{name}: got {_shown(value)}, expected a number above 0")


def _most(value: float) -> float:
    """Return the largest number that stands for `value`; an integer may be above every finite float."""
    return math.inf if isinstance(value, float) else sys.float_info.max


def require_share(name: str, value: object) -> None:
    """Refuse what is no number from 0 to 1.

    Raises:
        ArgumentError: It is none.
    """
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value <= 1):
        raise ArgumentError(f"{name}: got {_shown(value)}, expected a share from 0 to 1; try 0.5")


def require_number(name: str, value: object) -> None:
    """Refuse what is no finite number of at least 0.

    Raises:
        ArgumentError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ArgumentError(f"{name}: got {_shown(value)}, expected a finite number of at least 0")


def require_numbers(name: str, record: Any, rates: Collection[str] = ()) -> None:
    """Refuse a dataclass with a field that is no finite number of at least 0; None and flags may be there.

    Args:
        name: Name of the argument.
        record: The dataclass.
        rates: Fields that must be above 0, and may be infinite.

    Raises:
        ArgumentError: There is one.
    """
    for field in fields(record):
        value = getattr(record, field.name)
        if value is not None and not isinstance(value, bool):
            (require_rate if field.name in rates else require_number)(f"{name}: {field.name}", value)


def require_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ArgumentError: It is another value.
    """
    require_kind(name, value, bool, "True or False")


def require_flags(name: str, values: object) -> tuple[bool, ...]:
    """Return a list of at least one of True and False; refuse anything else.

    Raises:
        ArgumentError: It is something else.
    """
    flags = require_some(name, values, "[False]")
    for value in flags:
        require_flag(name, value)
    return flags


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
    if isinstance(value, kinds):
        return
    for part in _PARTS if type(value).__module__.startswith("pipesched.") else ():
        if isinstance(getattr(value, part, None), kinds):
            raise ArgumentError(f"{name}: got {_shown(value)}, expected what is in it; try its `{part}`")
    raise ArgumentError(f"{name}: got {_shown(value)}, expected {expected}")


_PARTS = ("profile", "costs", "plan", "cluster", "timeline", "schedule")
"""What results of some functions have in them, and other functions take."""


def require_path(path: object, name: str = "path") -> Path:
    """Return the name of a file or folder as a Path; refuse what is none.

    Raises:
        ArgumentError: It is none.
    """
    require_kind(name, path, str | Path, "the name of a file")
    assert isinstance(path, str | Path), "its kind"
    return Path(path)


def _shown(value: object) -> str:
    """Return a value as it is written, in one line; of a larger one its type alone: a list of ops fills a book."""
    return shown(value) if isinstance(value, str | int | float | None) else f"{type(value).__name__}(..)"


def refused_settings(count: int, reason: str | None) -> ArgumentError:
    """Return the error that says that none of so many settings can be, and why the first cannot."""
    if count == 1:
        return ArgumentError(f"the one setting cannot be: {reason}")
    return ArgumentError(f"none of {count} settings can be; the first: {reason}")
