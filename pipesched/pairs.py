"""``key=value,key=value`` as options give it."""

from __future__ import annotations

import math
from collections.abc import Collection

from pipesched.errors import InputError


def pairs(text: str, option: str, keys: Collection[str], example: str = "key=1,key=2") -> dict[str, str]:
    """Split `text`; each key is one of `keys`, and comes once. `example` is what to try instead of no such pairs.

    Raises:
        InputError: A part is no ``key=value``, or a key is unknown or comes twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise InputError(f"{option}: got {part!r}, expected key=value; try {option} {example}")
        if key not in keys:
            expected = f"one of {', '.join(keys)}" if keys else "none: there are none here"
            raise InputError(f"{option}: got {key}, expected {expected}; check its spelling")
        if key in found:
            raise InputError(f"{option}: got {key} twice, expected it once; remove one")
        found[key] = value
    return found


def numbers(text: str, option: str, keys: Collection[str]) -> dict[str, float]:
    """Return finite numbers of 0 or more under some of `keys`.

    Raises:
        InputError: An unknown key, or a value that is no such number.
    """
    return {key: number(value, f"{option}: {key}") for key, value in pairs(text, option, keys).items()}


def number(value: str, place: str) -> float:
    """Return a finite number of 0 or more.

    Raises:
        InputError: `value` is no such number; the message names `place`.
    """
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or found < 0:
        raise InputError(f"{place}: got {value}, expected a finite number of 0 or more; try 1")
    return found


def integer(value: str, place: str) -> int:
    """Return a whole number.

    Raises:
        InputError: `value` is no such number; the message names `place`.
    """
    try:
        return int(value)
    except ValueError:
        raise InputError(f"{place}: got {value}, expected a whole number; try 1") from None


def integers(value: str, place: str) -> tuple[int, ...]:
    """Return the whole numbers of ``2:1:1``.

    Raises:
        InputError: `value` is no such list; the message names `place`.
    """
    try:
        return tuple(int(part) for part in value.split(":"))
    except ValueError:
        raise InputError(f"{place}: got {value}, expected whole numbers with colons between them; try 2:1:1") from None
