"""``key=value,key=value`` as options give it."""

from __future__ import annotations

import math
from collections.abc import Collection

from pipesched.errors import InputError


def pairs(text: str, option: str, keys: Collection[str]) -> dict[str, str]:
    """Split `text`; each key is one of `keys`, and comes once.

    Raises:
        InputError: A part is no ``key=value``, or a key is unknown or comes twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise InputError(f"{option}: got {part!r}, expected key=value; try {option} key=1,key=2")
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
    found: dict[str, float] = {}
    for key, value in pairs(text, option, keys).items():
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < 0:
            raise InputError(f"{option}: {key}: got {value}, expected a finite number of 0 or more; try 1")
        found[key] = number
    return found


def integers(text: str, option: str, keys: Collection[str]) -> dict[str, int]:
    """Return whole numbers under some of `keys`.

    Raises:
        InputError: An unknown key, or a value that is no whole number.
    """
    found: dict[str, int] = {}
    for key, value in pairs(text, option, keys).items():
        try:
            found[key] = int(value)
        except ValueError:
            raise InputError(f"{option}: {key}: got {value}, expected a whole number; try 1") from None
    return found
