"""What a device holds, by numbers of times: the most of it is `simulator.memory`'s, without its samples."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pipesched.profiles.stage_costs import StageCosts
from pipesched.simulator.errors import SimulationError
from pipesched.simulator.holds import Hold, holds
from pipesched.simulator.moments import BEGINNING, Moments


@dataclass(frozen=True, slots=True)
class Held:
    """By one of several equal pipelines in step; how many there are is open.

    Attributes:
        times: Numbers of the times at which it changes, the beginning always among them.
        changes: By how much it then does [bytes].
        update_bytes: For an Average, of each pipeline, always; 0 if there is one alone.
        reference_bytes: For all of them together.
    """

    device: int
    times: tuple[int, ...]
    changes: tuple[int, ...]
    update_bytes: int
    reference_bytes: int

    def peak_bytes(self, times_s: Sequence[float], num_pipelines: int) -> int:
        """Return the most that so many hold together.

        What goes at an instant goes before what comes, so the sum on the way is never more than at its end.
        """
        changes = sorted(zip(map(times_s.__getitem__, self.times), self.changes, strict=True))
        most = max(accumulate(change for _, change in changes))
        return num_pipelines * most + self._always_bytes(num_pipelines)

    def first_over(self, times_s: Sequence[float], num_pipelines: int, capacity_bytes: int) -> tuple[float, int]:
        """Return when so many hold more than `capacity_bytes` for the first time [s], and how much that is.

        Raises:
            SimulationError: They never do.
        """
        changes: defaultdict[float, int] = defaultdict(int)
        for number, change in zip(self.times, self.changes, strict=True):
            changes[times_s[number]] += change
        held_bytes = self._always_bytes(num_pipelines)
        for time_s in sorted(changes):
            held_bytes += num_pipelines * changes[time_s]
            if held_bytes > capacity_bytes:
                return time_s, held_bytes
        raise SimulationError(f"device {self.device}: got {capacity_bytes} bytes, expected less than it ever holds")

    def _always_bytes(self, num_pipelines: int) -> int:
        return num_pipelines * self.update_bytes + self.reference_bytes if num_pipelines > 1 else 0


def held_on_devices(moments: Moments, costs: StageCosts) -> tuple[Held, ...]:
    """Return what each device holds that does hold something, in ascending order.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    numbers = moments.timeline(range(2 * len(moments.takes) + 2))  # in place of times
    return tuple(_held(device, mine) for device, mine in sorted(holds(numbers, costs, moments.schedule).items()))


def _held(device: int, all_holds: Iterable[Hold]) -> Held:
    changes: defaultdict[int, int] = defaultdict(int, {BEGINNING: 0})
    always = Counter[str]()
    for kind, num_bytes, since, until in all_holds:
        if kind in ("updates", "reference"):
            always[kind] += num_bytes
        elif since < until:
            changes[int(since)] += num_bytes
            if until < math.inf:
                changes[int(until)] -= num_bytes
    times = sorted(changes)
    return Held(device, tuple(times), tuple(changes[each] for each in times), always["updates"], always["reference"])
