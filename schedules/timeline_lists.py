"""The op lists of a Timeline."""

from __future__ import annotations

from pipesched.schedules.errors import ScheduleError
from pipesched.schedules.ops import computes
from pipesched.schedules.schedule import Schedule
from pipesched.schedules.timeline import Timeline


def schedule_of(timeline: Timeline) -> Schedule:
    """Return the ops of a run as a schedule; measured Sends and Recvs are in its lists.

    Raises:
        ScheduleError: The Timeline has no computation.
    """
    lists = tuple(tuple(span.op for span in timeline.of_rank(rank)) for rank in range(len(timeline.rank_to_device)))
    parts = [part for ops in lists for op in ops for part in computes(op)]
    if not parts:
        raise ScheduleError(
            f"{timeline.name}: got a Timeline without computations, expected at least one; try another run"
        )
    return Schedule(
        timeline.name,
        1 + max(part.stage for part in parts),
        1 + max(part.microbatch for part in parts),
        lists,
        timeline.rank_to_device,
    )
