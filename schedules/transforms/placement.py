"""Placement of the ranks of copies on devices.

A layout has a depth and a width; its *placement* gives each rank a device. Devices are numbered node by node. With p
= 4 and w = 2 on two nodes of four devices, written copy.rank:

    pipeline   0.0 0.1 0.2 0.3 | 1.0 1.1 1.2 1.3      activations stay inside the node, gradients are summed across
    data       0.0 1.0 0.1 1.1 | 0.2 1.2 0.3 1.3      gradients are summed inside the node, activations go across
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from pipesched.schedules import Schedule

Placement: TypeAlias = Literal["pipeline", "data"]
"""Ranks on neighbouring devices: the ranks of a copy, or the copies of a rank."""


def place_copies(schedule: Schedule, placement: Placement, width: int) -> Schedule:
    """Return `width` copies of a schedule, as `replicate` does, on the devices of `placement`."""
    if placement == "pipeline":
        return schedule
    depth = (max(schedule.rank_to_device) + 1) // width
    devices = tuple(device % depth * width + device // depth for device in schedule.rank_to_device)
    return replace(schedule, rank_to_device=devices)
