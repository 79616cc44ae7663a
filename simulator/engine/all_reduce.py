"""The all-reduces of a simulation: the ranks of each, and the time when all of them have posted.

`profiles.clusters.reduction_time` gives the duration of one, `engine.network` the links that it occupies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import final

from pipesched.schedules.ops import Reduce
from pipesched.schedules.semantics import MeetingKey, Meetings
from pipesched.simulator.engine.transfer_times import TransferTimes


@final
class Collectives:
    """Reduces that meet are one reduction, which can start when the last of the replicas has posted it."""

    def __init__(self, members: Mapping[int, Collection[int]]) -> None:
        self._members = members
        self._meetings = Meetings()
        self._absent: dict[MeetingKey, set[int]] = {}
        self._open: dict[MeetingKey, TransferTimes] = {}

    def post(self, rank: int, op: Reduce, late_s: float = 0.0) -> tuple[TransferTimes, bool]:
        """Post a rank's side, which ends `late_s` [s] after the network's; return if the reduction can start."""
        key = self._meetings.come(rank, op)
        times = self._open.setdefault(key, TransferTimes())
        times.late_s = late_s
        absent = self._absent.setdefault(key, set(self._members[op.stage]))
        absent.discard(rank)
        if not absent:
            del self._open[key], self._absent[key]
        return times, not absent

    def absent(self, times: TransferTimes) -> tuple[int, ...]:
        """Return the ranks that a reduction still waits for."""
        return next(
            (tuple(sorted(self._absent[key])) for key, open_times in self._open.items() if open_times is times), ()
        )
