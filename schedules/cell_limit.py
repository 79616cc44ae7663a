"""The limit of lists that are held in memory: so many stages times micro-batches."""

from __future__ import annotations

from pipesched.schedules.quoting import shown
from pipesched.schedules.schedule import MAX_CELLS, ScheduleError


def require_cells(what: str, num_stages: int, num_microbatches: int) -> None:
    """Refuse lists that would be too long to be held, before they are made.

    Args:
        what: The schedule, for the message.
        num_stages: Its stages.
        num_microbatches: Its micro-batches.

    Raises:
        ScheduleError: They would be; it says how many micro-batches could be held, or stages if not even one.
    """
    if num_stages * num_microbatches > MAX_CELLS:
        most = MAX_CELLS // num_stages
        advice = f"{most} micro-batches" if most else f"{MAX_CELLS // num_microbatches or 1} stages"
        raise ScheduleError(
            f"{what}: got {shown(num_microbatches)} micro-batches on {shown(num_stages)} stages, expected at most "
            f"{MAX_CELLS} in all; try {advice}"
        )
