"""Faults of an input, told in one line."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 3


def one_line(faults: Sequence[str]) -> str:
    """Join `faults`: the first three, then how many more there are."""
    text = "; ".join(faults[:_SHOWN])
    return text if len(faults) <= _SHOWN else f"{text}; and {len(faults) - _SHOWN} more"


def shown(value: object) -> str:
    """Return `value` as it may stand in a message: one line of printable ASCII, not longer than 60 characters."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
