"""Values as people write them: ``key=value``, numbers with units, lists and ranges of numbers, sizes in bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from pipesched.cli.errors import InputError
from pipesched.profiles import BYTE_UNITS, BYTES_LIMIT
from pipesched.schedules.common import guess, written_number


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
        return InputError(f"{option}: got {name}, expected no key, as this option has no keys here; leave it out")
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
    parsed = written_number(value)
    if math.isnan(parsed):
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
    parsed = written_number(value)
    if math.isnan(parsed):
        parsed = in_si(value, "_s")
    if not math.isfinite(parsed) or parsed < 0:
        raise InputError(f"{option}: got {value}, expected a time of 0 or more; try {option} {example}")
    return parsed


def _or_unit(value: str, place: str) -> str:
    """Return text that lists the valid units of the key if `value` has another unit, or else an empty text."""
    key = place.partition(": ")[2]
    _, units, _ = units_of(key)
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
    (r".*_bytes_per_s", r".+(/s|ps)", "MB/s, GB/s, GiB/s, Gbit/s", "10GB/s"),
    (r".*_bytes", r"[kKMGT]?i?B", "B, kB, MB, GB, KiB, MiB, GiB", "16GB"),
    (r"[fbiw]|.*_s", r"d|h|min|s|ms|us|µs|ns", "ns, us, ms, s, min, h, d", "10ms"),
    (r".*", r"%", "%", "5%"),
)
"""The units of keys, their names in messages, and an example: the first pattern that fits counts."""


def units_of(key: str) -> tuple[str, str, str]:
    """Return the pattern of the units of a key, their names, and a number with a unit."""
    return next((units, names, example) for keys, units, names, example in _UNITS_OF_KEYS if re.fullmatch(keys, key))


def in_si(value: str, key: str) -> float:
    """Return a value with a unit as a number in SI units, or NaN if it has no unit that fits the key."""
    sign, size = (-1, value[1:]) if value.startswith("-") else (1, value)
    amount = re.fullmatch(_AMOUNT, size)
    units, _, _ = units_of(key)
    meant = _meant(size, key) if amount is not None and re.fullmatch(units, amount[2]) else None
    return math.nan if meant is None else sign * meant


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
    meant = written_number(value)
    if not math.isnan(meant):
        with suppress(ValueError):
            return int(value)
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


_MOST = 10_000
"""Most numbers of a list; more are a mistake."""


def counts(text: str, option: str, least: int, most: int = 2**31 - 1) -> tuple[int, ...]:
    """Return the numbers of ``1,2,4-8,8:512:x2``, rising, each once.

    Raises:
        InputError: A part is no number or range, or below `least`, or above `most`.
    """
    counted: set[int] = set()
    for part in text.split(","):
        numbers = _whole_numbers(part, option)
        if numbers and numbers[-1] > most:
            raise InputError(f"{option}: got {part!r}, expected at most {most}; try {option} {least}-{least + 3}")
        if not numbers or numbers[0] < least or len(numbers) > _MOST:
            raise InputError(
                f"{option}: got {part!r}, expected whole numbers of at least {least}, or a range of them; try "
                f"{option} {least},{least + 1} or {least}-{least + 3}"
            )
        counted.update(numbers)
    return tuple(sorted(counted))


def _whole_numbers(part: str, option: str) -> range | list[int]:
    if ":" in part:
        return [int(value) for value in _ranged(part, option, lambda text: read_integer(text, option))]
    first, dash, last = (piece.strip() for piece in part.partition("-"))
    try:
        return range(int(first), int(last if dash else first) + 1)
    except ValueError:
        return range(0)


def amounts(text: str, place: str) -> tuple[float, ...]:
    """Return the numbers of ``1e9,10GB/s,1:16:x2``, in their order, each once; units fit the key of `place`.

    Raises:
        InputError: A part is no number or range.
    """
    read: list[float] = []
    for part in text.split(","):
        read += _ranged(part, place, lambda text: number(text, place)) if ":" in part else [number(part, place)]
    return tuple(dict.fromkeys(read))


def _ranged(part: str, place: str, read: Callable[[str], float]) -> list[float]:
    """Return the numbers of ``first:last``, ``first:last:step`` or ``first:last:xfactor``.

    Raises:
        InputError: The text is no such range, or the range is empty or infinite.
    """
    first, last, *steps = (piece.strip() for piece in part.split(":"))
    step = steps[0] if len(steps) == 1 else "1"
    is_factor = step.startswith("x")
    low, high = read(first), read(last)
    try:
        by = read(step.removeprefix("x"))
    except InputError:
        by = 0.0
    if len(steps) > 1 or high < low or by <= (1 if is_factor else 0) or (is_factor and low <= 0):
        raise InputError(
            f"{place}: got {part!r}, expected a range that rises, first:last:step or first:last:xfactor; "
            "try 8:512:x2 or 4:16:4"
        )
    most = math.log(high / low, by) if is_factor else (high - low) / by
    if most > _MOST:
        raise InputError(f"{place}: got {part!r}, expected a range of at most {_MOST} numbers; try a larger step")
    return [*_rising(low, high, by, is_factor=is_factor)]


def _rising(low: float, high: float, by: float, *, is_factor: bool) -> Iterator[float]:
    value, index = low, 0
    while value <= high * (1 + 1e-12):
        yield value
        index += 1
        value = low * by**index if is_factor else low + by * index


_LEAST_BARE = 1024
"""Least memory in bytes without a unit; a smaller number lacks its unit."""


def parse_bytes(text: str, option: str) -> int:
    """Return the bytes of a text: GB or gb is 10^9, GiB 2^30; Gb, which are bits, is refused.

    Raises:
        InputError: The text is no size, or more than any machine has.
    """
    bits = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]i?)b\s*", text)
    if bits is not None:
        raise InputError(
            f"{option}: got {text!r}, which are bits, expected bytes; try {bits[1]}{bits[2]}B for bytes, or an eighth "
            "of the number"
        )
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE]\+?[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    try:
        value = float(match[1]) * BYTE_UNITS[match[2].lower()] if match else math.nan
    except (ValueError, KeyError):
        value = math.nan
    if not 0 < value < BYTES_LIMIT:
        hint = (
            f"{text.strip()}B"
            if re.fullmatch(r"\s*[1-9][0-9]*\s*[KMGT]i?\s*", text, re.IGNORECASE)
            else "64KiB or 16GB"
        )
        raise InputError(f"{option}: got {text!r}, expected a size above 0; try {hint}")
    return round(value)


def parse_memory(text: str, option: str) -> int:
    """Return the bytes of a memory; a small number without a unit is refused.

    Raises:
        InputError: The text is no size, more than any machine has, or less than 1024 without a unit.
    """
    num_bytes = parse_bytes(text, option)
    bare = text.strip()
    if num_bytes < _LEAST_BARE and not bare[-1].isalpha():
        raise InputError(
            f"{option}: got {bare}, expected bytes, or a number with a unit; try {bare}GB; write {bare}B for bytes"
        )
    return num_bytes


def enough(num_bytes: int) -> int:
    """Return at least `num_bytes`, as a number that `parse_memory` takes without a unit."""
    return max(num_bytes, _LEAST_BARE)


def byte_units(unit: str) -> float | None:
    """Return the bytes of a unit, of bits too (``Gbit``, ``Gb``), or None for another text."""
    bits = re.fullmatch(r"([KMGTkmgt]?)(bit|b)", unit)
    if bits is not None:
        return BYTE_UNITS[f"{bits[1].lower()}b"] / 8
    return BYTE_UNITS.get(unit.lower())
