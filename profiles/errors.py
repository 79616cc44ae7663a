"""The errors of costs, clusters, models and their files."""

from __future__ import annotations

from pipesched.schedules.common import OneLineError, integer, shown
from pipesched.schedules.formats import MAX_DEVICES


class ProfileError(OneLineError):
    """A cost, a cluster, a model or a file is invalid."""


def require_count(name: str, value: object, least: int = 1, most: int = MAX_DEVICES) -> int:
    """Return `value` as a Python integer; refuse other values, and numbers out of range.

    Raises:
        ProfileError: `value` is no integer from `least` to `most`.
    """
    number = integer(value)
    if number is None or number < least:
        raise ProfileError(f"{name}: got {shown(value)}, expected an integer of at least {least}")
    if number > most:
        raise ProfileError(f"{name}: got {shown(number)}, expected at most {most}")
    return number
