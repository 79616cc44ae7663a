"""Vector clocks at Reduces, for lists that are read op by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pipesched.schedules.ops import Reduce
from pipesched.schedules.semantics import MeetingKey, Meetings


class ReduceClocks:
    """The joint vector clocks of replicas at their k-th Reduces of a stage; each replica learns one at its next Step.

    A clock is dropped when every replica has reached its next Reduce.

    Args:
        num_replicas: Number of ranks that reduce each stage.
    """

    def __init__(self, num_replicas: Mapping[int, int]) -> None:
        self._num_replicas = num_replicas
        self._meetings = Meetings()
        self._last: dict[tuple[int, int], MeetingKey] = {}  # of a rank and a stage
        self._told: dict[MeetingKey, tuple[int, ...]] = {}
        self._num_there: Counter[MeetingKey] = Counter()
        self._num_gone: Counter[MeetingKey] = Counter()

    def __len__(self) -> int:
        """Return the number of clocks in memory."""
        return len(self._told)

    def tell(self, rank: int, stage: int, clock: list[int]) -> None:
        """Record the clock of `rank` at its next Reduce of `stage`, for the other replicas."""
        self._leave(rank, stage)
        key = self._last[rank, stage] = self._meetings.come(rank, Reduce(stage))
        self._num_there[key] += 1
        self._told[key] = tuple(map(max, clock, self._told.get(key, clock)))

    def learn(self, rank: int, stage: int, clock: list[int]) -> bool:
        """Merge all replicas' clocks at the last Reduce of `rank` into `clock`; return whether all have reached it."""
        key = self._last.get((rank, stage))
        if key is None:
            return True
        if self._num_there[key] < self._num_replicas[stage]:
            return False
        clock[:] = map(max, clock, self._told[key])
        return True

    def _leave(self, rank: int, stage: int) -> None:
        key = self._last.get((rank, stage))
        if key is None:
            return
        self._num_gone[key] += 1
        if self._num_gone[key] == self._num_replicas[stage]:
            del self._told[key], self._num_there[key], self._num_gone[key]
