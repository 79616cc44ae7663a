"""Checks of counts and indices from a caller: integers of any library, with a lower limit."""

from __future__ import annotations

from operator import index
from typing import Any

from pipesched.schedules import ScheduleError


def positive(**counts: int) -> None:
    """Refuse counts below 1, in one message.

    Raises:
        ScheduleError: A count is below 1 or not an integer.
    """
    faults = [
        f"{name} is {value!r}, expected an integer of at least 1"
        for name, value in counts.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    ]
    if faults:
        raise ScheduleError("; ".join(faults))


def integer(value: Any) -> int | None:
    """Return an integer of Python, numpy or torch as an int, or None for any other value; True is no integer here."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None
