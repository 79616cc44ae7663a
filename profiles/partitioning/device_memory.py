"""The bytes that a device holds under the schedule that its stages are cut for, without buffers of messages."""

from __future__ import annotations

from collections.abc import Sequence

from pipesched.profiles.costs import StageCost
from pipesched.schedules import computes, in_flight_change
from pipesched.schedules.builders import build


def held_bytes(cost: StageCost, in_flight: int) -> int:
    """Return weights, gradients, optimizer state, the activations of `in_flight` micro-batches and what B works in.

    Further versions of the weights, which some schedules have, are not in it.
    """
    always, for_microbatch = flushed_bytes(cost)
    return always + cost.working_bytes + in_flight * for_microbatch


def flushed_bytes(cost: StageCost) -> tuple[int, int]:
    """Return what a stage with one version of its weights holds always, and for each micro-batch in flight.

    Always: weights, gradients and optimizer state. For each: its activations. Of layers that become a stage both add
    up.
    """
    return 2 * cost.weight_bytes + cost.optimizer_bytes, cost.saved_bytes


def stashed_bytes(cost: StageCost) -> tuple[int, int]:
    """Return what 1F1B-RR, like PipeDream, holds always, and for each micro-batch in flight.

    Always: optimizer state, and gradients or what B works in, which are gone before the next B. For each: its
    activations, and the version of the weights that it read. That is a bound: a version lives on until its Step, when
    the activations are gone already.
    """
    return cost.optimizer_bytes + max(cost.weight_bytes, cost.working_bytes), cost.weight_bytes + cost.saved_bytes


def interleaved_bytes(costs: Sequence[StageCost], num_devices: int) -> list[int]:
    """Return what each device holds under interleaved 1F1B, stage s being on device s mod `num_devices`.

    What is in flight is counted op by op, over more micro-batches than it takes to fill the pipeline.
    """
    schedule = build("interleaved", num_devices, 4 * num_devices, len(costs) // num_devices)
    device_bytes = []
    for device, row in enumerate(schedule.ops):
        saved = most = 0
        for part in (part for op in row for part in computes(op)):
            cost, change = costs[part.stage], in_flight_change(part)
            if change < 0:  # the most is there before a B lets go of some of it
                most = max(most, saved + cost.working_bytes)
            saved += cost.saved_bytes * change
        device_bytes.append(most + sum(flushed_bytes(cost)[0] for cost in costs[device::num_devices]))
    return device_bytes
