"""The bytes that a device holds under the schedule of its stages, without message buffers."""

from __future__ import annotations

from collections.abc import Sequence

from pipesched.profiles.costs import StageCost
from pipesched.schedules.builders import build
from pipesched.schedules.ops import computes, in_flight_change


def held_bytes(cost: StageCost, in_flight: int) -> int:
    """Return weights, gradients, optimizer state, activations of `in_flight` micro-batches and working memory of B.

    Further versions of the weights, which some schedules have, are not included.
    """
    always, for_microbatch = flushed_bytes(cost)
    return always + cost.working_bytes + in_flight * for_microbatch


def flushed_bytes(cost: StageCost) -> tuple[int, int]:
    """Return the fixed bytes of a stage with one version of its weights, and its bytes per micro-batch in flight.

    Fixed: weights, gradients and optimizer state. Per micro-batch: activations. Both add up over the layers of a stage.
    """
    return 2 * cost.weight_bytes + cost.optimizer_bytes, cost.saved_bytes


def stashed_bytes(cost: StageCost) -> tuple[int, int]:
    """Return the fixed bytes of a stage under 1F1B-RR, as in PipeDream, and its bytes per micro-batch in flight.

    Fixed: optimizer state, and gradients or the working memory of B, which are freed before the next B. Per micro-
    batch: its activations, and the version of the weights that it read. That is a bound: a version lives on until its
    Step, when the activations are already freed.
    """
    return cost.optimizer_bytes + max(cost.weight_bytes, cost.working_bytes), cost.weight_bytes + cost.saved_bytes


def interleaved_bytes(costs: Sequence[StageCost], num_devices: int) -> list[int]:
    """Return the bytes that each device holds under interleaved 1F1B, with stage s on device s mod `num_devices`.

    Micro-batches in flight are counted op by op, over more micro-batches than it takes to fill the pipeline.
    """
    schedule = build("interleaved", num_devices, 4 * num_devices, len(costs) // num_devices)
    device_bytes = []
    for device, row in enumerate(schedule.ops):
        saved = most = 0
        for part in (part for op in row for part in computes(op)):
            cost, change = costs[part.stage], in_flight_change(part)
            if change < 0:  # the peak is before a B frees some of it
                most = max(most, saved + cost.working_bytes)
            saved += cost.saved_bytes * change
        device_bytes.append(most + sum(flushed_bytes(cost)[0] for cost in costs[device::num_devices]))
    return device_bytes
