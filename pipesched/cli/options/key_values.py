"""Parsing of ``key=value,key=value`` in options."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from pipesched.cli.byte_sizes import byte_units
from pipesched.cli.errors import InputError
from pipesched.schedules.common import guess


def pairs(text: str, option: str, keys: Collection[str], example: str = "key=1,key=2") -> dict[str, str]:
    """Split `text` into pairs with keys from `keys`, each once; errors suggest `example`.

    Raises:
        InputError: A part is no ``key=value``, or a key is unknown or comes twice.
    """
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        key = long_key(name, keys)
        if not key or not equals or not value:
            raise InputError(f"{option}: got {part!r}, expected key=value; try {option} {example}")
        if key not in keys:
            raise unknown_key(option, key, keys)
        if key in values:
            raise InputError(f"{option}: got {key} twice, expected it once; remove one")
        values[key] = value
    return values


def unknown_key(option: str, name: str, keys: Collection[str]) -> InputError:
    """Return the error for a key that is not in `keys`."""
    if not keys:
        return InputError(f"{option}: got {name}, expected nothing, as nothing can be set here; leave it out")
    return InputError(f"{option}: got {name}, {guess(name, keys)}expected one of {', '.join(keys)}; check its spelling")


def long_key(name: str, keys: Collection[str]) -> str:
    """Return `name`, or the key with a unit that it abbreviates: ``bandwidth`` is ``bandwidth_bytes_per_s``."""
    with_units = (name, f"{name}_s", f"{name}_bytes_per_s", f"{name}_bytes")
    return next((key for key in with_units if key in keys), name)


def numbers(text: str, option: str, keys: Collection[str], example: str) -> dict[str, float]:
    """Return finite numbers of 0 or more under some of `keys`, in SI units; each may have a unit that fits its key.

    Errors suggest `example`.

    Raises:
        InputError: An unknown key, or a value that is no such number.
    """
    return {key: number(value, f"{option}: {key}") for key, value in pairs(text, option, keys, example).items()}


def number(value: str, place: str) -> float:
    """Return a finite number of 0 or more, in SI units: ``0.01``, or with a unit of the key ``10ms``, ``25GB/s``.

    Raises:
        InputError: `value` is no such number; the message names `place`.
    """
    try:
        parsed = float(value)
    except ValueError:
        parsed = in_si(value, place.partition(": ")[2])
    if not math.isfinite(parsed) or parsed < 0:
        expected = f"a finite number of 0 or more{_or_unit(value, place)}"
        raise InputError(f"{place}: got {value}, expected {expected}; try {_hint(value, place)}")
    return parsed


def time_s(value: str, option: str, example: str = "10ms") -> float:
    """Return a time [s]: ``0.01``, or with a unit ``10ms``, ``3h``; errors suggest `example`.

    Raises:
        InputError: `value` is no such time.
    """
    try:
        parsed = float(value)
    except ValueError:
        parsed = in_si(value, "_s")
    if not math.isfinite(parsed) or parsed < 0:
        raise InputError(f"{option}: got {value}, expected a time of 0 or more; try {option} {example}")
    return parsed


def _or_unit(value: str, place: str) -> str:
    """Return the units of the key, for a value with another unit."""
    key = place.partition(": ")[2]
    units = next(units for keys, _, units in _UNITS_OF_KEYS if re.fullmatch(keys, key))
    is_unit = re.fullmatch(_AMOUNT, value) is not None and _meant(value, key) is None
    return f", with a unit or without: {units}" if is_unit else ""


def _hint(value: str, place: str) -> str:
    """Return a suggestion for `value`: the intended number in the unit of the option, if it is clear."""
    key = place.partition(": ")[2]
    meant = _meant(value, key)
    if meant is not None and key.endswith("_per_s") and not re.search(r"(/s|ps)\s*$", value):
        return f"{key}={value.strip()}/s"
    return (f"{key}=" if key else "") + ("1" if meant is None else f"{meant:.12g}")


_UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "%": 1e-2}
_UNITS_OF_KEYS = (
    (r".*_bytes_per_s", r".+(/s|ps)", "MB/s, GB/s, GiB/s, Gbit/s"),
    (r".*_bytes", r"[kKMGT]?i?B", "B, kB, MB, GB, KiB, MiB, GiB"),
    (r"[fbiw]|.*_s", r"d|h|min|s|ms|us|µs|ns", "ns, us, ms, s, min, h, d"),
    (r".*", r"%", "%"),
)
"""The units of keys, and their names in messages: the first pattern that fits counts."""


def in_si(value: str, key: str) -> float:
    """Return the number, in SI units, of a value with a unit that fits the key; NaN if it has none."""
    amount = re.fullmatch(_AMOUNT, value)
    units = next(units for keys, units, _ in _UNITS_OF_KEYS if re.fullmatch(keys, key))
    meant = _meant(value, key) if amount is not None and re.fullmatch(units, amount[2]) else None
    return math.nan if meant is None else meant


_AMOUNT = r"\s*([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([^\s0-9].*?)\s*"


def _meant(value: str, key: str) -> float | None:
    """Return the number of a value with a unit, as ``1ms``, ``16GB``, ``25Gbit/s`` or ``50%``, in SI units."""
    match = re.fullmatch(_AMOUNT, value)
    if match is None:
        return None
    unit = match[2]
    if key.endswith("_bytes_per_s"):
        factor = byte_units(re.sub(r"(/s|ps)$", "", unit))
    elif key.endswith("_bytes"):
        factor = byte_units(unit)
    else:
        factor = _UNITS.get(unit)
    return None if factor is None else float(match[1]) * factor


def read_integer(value: str, place: str) -> int:
    """Return a whole number.

    Raises:
        InputError: `value` is no such number; the message names `place`.
    """
    try:
        return int(value)
    except ValueError:
        pass
    try:
        meant = float(value)
    except ValueError:
        meant = math.nan
    hint = f"{meant:.0f}" if meant.is_integer() else "1"
    raise InputError(f"{place}: got {value}, expected a whole number; try {hint}")


def integers(value: str, place: str) -> tuple[int, ...]:
    """Return the whole numbers of ``2:1:1``.

    Raises:
        InputError: `value` is no such list; the message names `place`.
    """
    try:
        return tuple(int(part) for part in value.split(":"))
    except ValueError:
        raise InputError(f"{place}: got {value}, expected whole numbers with colons between them; try 2:1:1") from None
