"""Sizes as people write them: ``16GB``, ``16GiB``, ``1.6e10``."""

from __future__ import annotations

import math
import re

from pipesched.cli.errors import InputError
from pipesched.profiles import BYTE_UNITS, BYTES_LIMIT

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
