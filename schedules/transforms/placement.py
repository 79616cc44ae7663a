"""Placement: the devices that the ranks of copies are on.

Depth times width is a layout; where its ranks run is its *placement*. On devices numbered node by node, p = 4 by
w = 2 on two nodes of four, as copy.rank:

    pipeline   0.0 0.1 0.2 0.3 | 1.0 1.1 1.2 1.3      activations stay inside the node, gradients are summed across
    data       0.0 1.0 0.1 1.1 | 0.2 1.2 0.3 1.3      gradients are summed inside the node, activations go across
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from pipesched.schedules import Schedule

Placement: TypeAlias = Literal["pipeline", "data"]
"""The neighbours on the devices: the ranks of a copy, or the copies of a rank."""


def place_copies(schedule: Schedule, placement: Placement, width: int) -> Schedule:
    """Return the result of `replicate` for `width`, with its ranks on the devices of `placement`."""
    if placement == "pipeline":
        return schedule
    depth = (max(schedule.rank_to_device) + 1) // width
    devices = tuple(device % depth * width + device // depth for device in schedule.rank_to_device)
    return replace(schedule, rank_to_device=devices)
