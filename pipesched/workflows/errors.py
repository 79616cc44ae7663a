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

from pipesched.schedules.common import MAX_NUMBER, OneLineError, declared, faults, integer, said, shown

MAX_INT64 = 2**63 - 1
"""Most bytes, and the largest seed."""


class ArgumentError(OneLineError):
    """An argument, or a combination of arguments, is invalid: ``name: got .., expected ..; try ..``."""


class MissingDeviceError(ArgumentError):
    """A setting needs a GPU, and torch sees none on this machine."""


def require_settings(record: Any) -> None:
    """Refuse a dataclass with an invalid declared setting; numbers become Python's, and `Counts` a tuple.

    Raises:
        ArgumentError: A setting is invalid.
    """
    for fault in faults(record):
        raise ArgumentError(fault)
    for name, setting in declared(record.__class__).items():
        object.__setattr__(record, name, setting.plain(getattr(record, name)))  # it is frozen


def require_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Refuse a value outside `choices`, as ``typing.get_args`` of a Literal returns them.

    Raises:
        ArgumentError: The value is not a choice.
    """
    if not isinstance(value, Hashable) or value not in choices:
        raise ArgumentError(f"{name}: got {said(value)}, expected one of {', '.join(map(str, choices))}")


def require_integer(name: str, value: object, expected: str = "an integer") -> int:
    """Return `value` as a Python integer; integers of numpy are accepted.

    Raises:
        ArgumentError: The value is not an integer.
    """
    number = integer(value)
    if number is None:
        raise ArgumentError(f"{name}: got {said(value)}, expected {expected}")
    return number


def require_at_least(name: str, value: object, least: int, most: int = MAX_NUMBER) -> int:
    """Return `value` as a Python integer from `least` to `most`.

    Raises:
        ArgumentError: The value is not an integer, or out of range.
    """
    advice = ", in bytes; try 14 * 10**9" if name.endswith("_bytes") and isinstance(value, str) else ""
    number = require_integer(name, value, f"an integer of at least {least}{advice}")
    if number < least:
        raise ArgumentError(f"{name}: got {shown(number)}, expected at least {least}")
    if number > most:
        raise ArgumentError(f"{name}: got {shown(number)}, expected at most {most}")
    return number


def require_optional(name: str, value: object, least: int, most: int = MAX_NUMBER) -> int | None:
    """Return the result of `require_at_least`, or None for None.

    Raises:
        ArgumentError: The value is neither None nor such an integer.
    """
    return None if value is None else require_at_least(name, value, least, most)


def require_names(name: str, value: object) -> tuple[Any, ...]:
    """Return the items of a list; refuse also a bare string, whose items are letters, and an iterator.

    Raises:
        ArgumentError: The value is not a list.
    """
    if isinstance(value, str):
        parts = ", ".join(map(shown, value.split(",")))
        raise ArgumentError(f"{name}: got {shown(value)}, expected a list; try [{parts}]")
    if isinstance(value, Collection):
        with suppress(TypeError):  # an array without dimensions
            return tuple(value)
    raise ArgumentError(f"{name}: got {said(value)}, expected a list")


def require_some(name: str, value: object, advice: str) -> tuple[Any, ...]:
    """Return the items of a list that is not empty; `advice` is an example of a valid list.

    Raises:
        ArgumentError: The value is not a list, or empty.
    """
    values = require_names(name, value)
    if not values:
        raise ArgumentError(f"{name}: got an empty list, expected at least one; try {advice}")
    return values


def require_rate(name: str, value: object) -> None:
    """Refuse a value that is not a number above 0.

    Raises:
        ArgumentError: The value is not a number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _most(value):
        raise ArgumentError(f"{name}: got {said(value)}, expected a number above 0")


def _most(value: float) -> float:
    """Return the largest number of the type of `value`; an integer may be above every finite float."""
    return math.inf if isinstance(value, float) else sys.float_info.max


def require_number(name: str, value: object) -> None:
    """Refuse a value that is not a finite number of at least 0.

    Raises:
        ArgumentError: The value is not a number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ArgumentError(f"{name}: got {said(value)}, expected a finite number of at least 0")


def require_numbers(name: str, record: Any, rates: Collection[str] = ()) -> None:
    """Refuse a dataclass with a field that is not a finite number of at least 0; fields may be None or flags.

    Args:
        name: Name of the argument.
        record: The dataclass.
        rates: Fields that must be above 0, and may be infinite.

    Raises:
        ArgumentError: A field is invalid.
    """
    for field in fields(record):
        value = getattr(record, field.name)
        if value is not None and not isinstance(value, bool):
            (require_rate if field.name in rates else require_number)(f"{name}: {field.name}", value)


def require_flag(name: str, value: object) -> None:
    """Refuse a value that is neither True nor False.

    Raises:
        ArgumentError: The value is not a flag.
    """
    require_kind(name, value, bool, "True or False")


def require_callable(name: str, value: object) -> None:
    """Refuse a value that is not callable.

    Raises:
        ArgumentError: The value is not callable.
    """
    if not callable(value):
        raise ArgumentError(f"{name}: got {said(value)}, expected a function")


def require_kind(name: str, value: object, kinds: type | UnionType, expected: str) -> None:
    """Refuse a value that is not an instance of `kinds`.

    Args:
        name: Name of the argument.
        kinds: The kinds, as `isinstance` takes them.
        expected: The kinds in words, for the message.

    Raises:
        ArgumentError: The value is of another kind.
    """
    if isinstance(value, kinds):
        return
    for part in _PARTS if type(value).__module__.startswith("pipesched.") else ():
        if isinstance(getattr(value, part, None), kinds):
            raise ArgumentError(f"{name}: got {said(value)}, expected a part of this object; try its `{part}`")
    raise ArgumentError(f"{name}: got {said(value)}, expected {expected}")


_PARTS = ("profile", "costs", "plan", "cluster", "timeline", "schedule")
"""Attributes of results of some functions that other functions take as arguments."""


def require_path(path: object, name: str = "path") -> Path:
    """Return the name of a file or folder as a Path.

    Raises:
        ArgumentError: The value is neither a string nor a Path.
    """
    require_kind(name, path, str | Path, "the name of a file")
    assert isinstance(path, str | Path), "its kind"
    return Path(path)


def refused_settings(count: int, reason: str | None) -> ArgumentError:
    """Return the error for `count` settings that are all refused, with the reason of the first."""
    if count == 1:
        return ArgumentError(f"the only setting is invalid: {reason}")
    return ArgumentError(f"all {count} settings are invalid; the reason of the first: {reason}")
