"""The limits of counts, numbers, seconds, and of lists in memory."""

from __future__ import annotations

import math
from operator import index
from typing import Any

from pipesched.schedules import ScheduleError
from pipesched.schedules.common.memory_room import room_bytes
from pipesched.schedules.common.quoting import shown

MAX_CELLS = 5_000_000
"""Most ops, and most stages times micro-batches, of a schedule in memory or in a file."""

MAX_NUMBER = 999_999_999
"""Largest stage, micro-batch, rank, device or version in a file, and largest count."""

LONGEST_S = 7 * 24 * 3600.0
"""Longest emulated op and longest wait [s], a week: every clock and sleep supports it."""

CELL_BYTES = 600
"""Memory of a micro-batch of a stage while columns are built, lowered and simulated [bytes]."""

MOST_RANKS = 22_360
"""Most ranks of lists that can be lowered: each rank has a clock with a number of each other rank."""

_MOST_NUMBERED = 150_000_000
"""Most stages times micro-batches whose instructions and times can be numbered with 32 bits."""


def require_cells(
    what: str, num_ranks: int, num_stages: int, num_microbatches: int, *, are_columns: bool = True
) -> None:
    """Refuse lists that would not fit into memory, before they are made.

    Args:
        what: Name of the schedule, for the message.
        num_ranks: Number of ranks.
        num_stages: Number of stages.
        num_microbatches: Number of micro-batches.
        are_columns: Whether ops are numbers in columns; otherwise each op is an object.

    Raises:
        ScheduleError: The lists would be too large; the message has the largest possible number of micro-batches, or
            of stages if not even one micro-batch fits.
    """
    if num_ranks > MOST_RANKS:
        raise ScheduleError(f"{what}: got {shown(num_ranks)} ranks, expected at most {MOST_RANKS}; try {MOST_RANKS}")
    num_cells = num_stages * num_microbatches
    if num_cells <= MAX_CELLS // 10:
        return
    most, where = MAX_CELLS, "in all"
    if are_columns:
        most, where = min(room_bytes() // CELL_BYTES, _MOST_NUMBERED), "in all, for which there is memory"
    if num_cells > most:
        microbatches = most // num_stages
        advice = f"{microbatches} micro-batches" if microbatches else f"{max(1, most // num_microbatches)} stages"
        raise ScheduleError(
            f"{what}: got {shown(num_microbatches)} micro-batches on {shown(num_stages)} stages, expected at most "
            f"{most} {where}; try {advice}"
        )


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


def written_number(text: str) -> float:
    """Return the number in `text`; NaN for other text, as for digits other than 0 to 9 or an underscore among them."""
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan
