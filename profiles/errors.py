"""The errors of costs, clusters, models and the files that hold them."""

from __future__ import annotations

from pipesched.schedules import OneLineError, integer, shown
from pipesched.schedules.formats import MAX_DEVICES


class ProfileError(OneLineError):
    """A cost, a cluster, a model or a file of one is not what it must be."""


def require_count(name: str, value: object, least: int = 1, most: int = MAX_DEVICES) -> int:
    """Return an integer of Python; refuse what is none, as one of numpy's is, or not from `least` to `most`.

    Raises:
        ProfileError: It is not.
    """
    number = integer(value)
    if number is None or number < least:
        raise ProfileError(f"{name}: got {shown(value)}, expected an integer of at least {least}")
    if number > most:
        raise ProfileError(f"{name}: got {shown(number)}, expected at most {most}")
    return number
