"""The bytes by which lists are above the memory of their devices, as the simulator counts it, in order problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.simulator.fast import simulate_arrays
from pipesched.simulator.memory import memory, peak_memory
from pipesched.simulator.optimum.activation_room import ActivationRoom

Excess: TypeAlias = Callable[[Schedule], tuple[int, ...]]
"""Says of lists by how many units of the room each rank is above its limit."""


def excess_in(room: ActivationRoom, costs: StageCosts, cluster: Cluster) -> Excess:
    """Return the function that computes by how much the lists of each rank exceed its memory; 0 in a counted room.

    Args:
        room: Its unit.
        costs: Bytes of the stages.
        cluster: The memory of the devices; each rank has one of its own.
    """

    def excess(schedule: Schedule) -> tuple[int, ...]:
        if not room.counts_bytes:
            return (0,) * schedule.num_ranks
        lowered = lower(schedule)
        peaks = peak_memory(memory(simulate_arrays(lowered, costs, cluster), costs, lowered))
        limits = [cluster.devices[device].memory_bytes for device in schedule.rank_to_device]
        over = [
            0 if limit is None or device not in peaks else max(0, peaks[device].total_bytes - limit)
            for device, limit in zip(schedule.rank_to_device, limits, strict=True)
        ]
        return tuple(-(-num_bytes // room.unit_bytes) for num_bytes in over)

    return excess
