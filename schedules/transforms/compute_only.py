"""A schedule without its messages."""

from __future__ import annotations

from dataclasses import replace

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Recv, Send


def compute_only(schedule: Schedule) -> Schedule:
    """Return `schedule` without its Sends and Recvs."""
    rows = tuple(tuple(op for op in row if not isinstance(op, Send | Recv)) for row in schedule.ops)
    return replace(schedule, lists=rows, is_lowered=False)
