"""Sizes as people write them: ``16GB``, ``16GiB``, ``1.6e10``."""

from __future__ import annotations

import math
import re

from pipesched.errors import InputError

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{end}": base ** (power + 1)
    for power, letter in enumerate("KMGT")
    for end, base in (("B", 1000), ("iB", 1024))
}
_MAX_BYTES = 2**63


def parse_bytes(text: str, option: str) -> int:
    """Return the bytes that `text` says: GB is 10^9, GiB 2^30.

    Raises:
        InputError: It says none, or more than any machine has.
    """
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    found = re.fullmatch(r"\s*([0-9.]+(?:[eE]\+?[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    try:
        value = float(found[1]) * units[found[2].lower()] if found else math.nan
    except (ValueError, KeyError):
        value = math.nan
    if not 0 < value < _MAX_BYTES:
        raise InputError(f"{option}: got {text!r}, expected a size above 0; try 64KiB or 16GB")
    return round(value)
