"""The room for activations: the memory of a micro-batch on each stage, and the limit of each rank.

    held on a stage    F ─────────── B            saved
                       F ───── I ─────── W        saved, from the end of I on kept
                                 └─────┘
                       F ───────────── R ─── B      inputs, from the start of R on saved

All are whole numbers of one unit: bytes, or shares of the micro-batches that `simulator.memory` counts in flight.
A room in bytes also counts memory beside activations. Any list holds at least this, whatever its op times and Recvs:

    gradients of a stage     the end of the first B or W to the end of its Step
    gradient that arrived    while B or I uses it
    working memory of B, I   while it runs
    output, or a gradient    from its making until the other stage has used it; on one rank an output until F starts
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.ops import ENDS_MICROBATCH, Compute, Message, Op, Payload, Phase, Step
from pipesched.simulator import SimulationError
from pipesched.simulator.memory import Part, activation_bytes
from pipesched.simulator.optimum.orderable_lists import is_split, recomputing_stages

_UNIT = 1_000_000
"""Units of the saved activations of a stage. Activations kept for W are counted in these units, rounded down."""


@final
@dataclass(frozen=True, slots=True)
class ActivationRoom:
    """Memory per micro-batch and stage, and the limits of the ranks.

    Attributes:
        saved: Activations of a micro-batch from the start of F to the end of B or I, by stage.
        kept: Activations from the end of I to the end of W, by stage; equal to `saved` if the backward is whole.
        inputs: Activations from F to R, by stage that recomputes.
        limits: Memory limit, by rank.
        gradients: Weight gradients, by stage.
        arriving: Gradient from another rank while B or I uses it, by stage.
        working: Working memory of B or I, by stage.
        outputs: Part of a stage's output that is held until the next stage has used it, by stage.
        handed: Part of the gradient made by a stage that is held until the stage before has used it, by stage.
        unit_bytes: Bytes of a unit; 0 if the unit is a share of a micro-batch.
    """

    saved: tuple[int, ...]
    kept: tuple[int, ...]
    inputs: tuple[int, ...]
    limits: tuple[int, ...]
    gradients: tuple[int, ...]
    arriving: tuple[int, ...]
    working: tuple[int, ...]
    outputs: tuple[int, ...]
    handed: tuple[int, ...]
    unit_bytes: int = 0

    @property
    def counts_bytes(self) -> bool:
        """Whether the unit is bytes; the room then counts memory beside activations, too."""
        return self.unit_bytes > 0

    @property
    def has_large_gradients(self) -> bool:
        """Whether the gradients of some stage are at least a third of its activations per micro-batch."""
        return any(3 * gradient >= saved > 0 for gradient, saved in zip(self.gradients, self.saved, strict=True))

    def inside(self, stage: int) -> int:
        """Return the arrived gradient and the working memory of B or I of a stage while it runs."""
        return self.arriving[stage] + self.working[stage]

    def most_held(self, ops: Iterable[Op]) -> int:
        """Return a lower bound of the peak memory of a rank that runs these ops in this order."""
        held = most = 0
        parts = [op for op in ops if isinstance(op, Compute | Step)]
        rebuilt = {op.stage for op in parts if isinstance(op, Compute) and op.phase is Phase.RECOMPUTE}
        with_gradients = set[int]()
        for op in parts:
            stage = op.stage
            if isinstance(op, Step):
                held -= self.gradients[stage] if stage in with_gradients else 0
                with_gradients.discard(stage)
                continue
            if op.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT):
                most = max(most, held + self.inside(stage))
            match op.phase:
                case Phase.FORWARD:
                    held += (self.inputs if stage in rebuilt else self.saved)[stage]
                case Phase.RECOMPUTE:
                    held += self.saved[stage] - self.inputs[stage]
                case Phase.BACKWARD:
                    held -= self.saved[stage]
                case Phase.BACKWARD_INPUT:
                    held += self.kept[stage] - self.saved[stage]
                case Phase.BACKWARD_WEIGHT:
                    held -= self.kept[stage]
            if op.phase in ENDS_MICROBATCH and stage not in with_gradients:
                with_gradients.add(stage)
                held += self.gradients[stage]
            most = max(most, held)
        return most

    def holds(self, schedule: Schedule) -> bool:
        """Whether no rank of a schedule of these stages and ranks ever holds more than it may."""
        return all(self.most_held(row) <= limit for row, limit in zip(schedule.ops, self.limits, strict=True))

    def least_held(self, schedule: Schedule, rank: int) -> tuple[int, int]:
        """Return a lower bound of a rank's peak memory over all orders, and its part beside activations.

        If the micro-batches do not all fit at once, the last of them is in memory together with the gradients.
        """
        rebuilt = recomputing_stages(schedule)
        held = beside = 0
        most = 0, 0
        for stage in sorted(schedule.stages_on(rank)):
            waiting = (self.inputs if stage in rebuilt else self.saved)[stage]
            size = min(waiting, self.kept[stage])
            if size and schedule.num_microbatches > self.limits[rank] // size:
                beside += self.gradients[stage]
            also = beside + self.inside(stage)
            most = max(most, (held + max(self.saved[stage] + also, self.kept[stage] + beside), also))
            held += waiting
        return most


def counted_room(schedule: Schedule, costs: StageCosts, in_flight: float) -> ActivationRoom:
    """Return the room for `in_flight` micro-batches on each rank, counted as `simulator.memory.in_flight` does.

    Raises:
        SimulationError: It is less than one micro-batch.
    """
    limit = round(Fraction(in_flight) / schedule.stage_share * _UNIT)
    return _reduced(schedule, _counted_room(costs, (limit,) * schedule.num_ranks))


def most_in_flight(schedule: Schedule, costs: StageCosts) -> float:
    """Return the micro-batches that are in flight at most, on the rank with most, as its list orders them."""
    room = _counted_room(costs, ())
    most = max(map(room.most_held, schedule.ops), default=0)
    return float(Fraction(most, _UNIT) * schedule.stage_share)


def bytes_room(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> ActivationRoom | None:
    """Return the room that weights and the optimizer's state leave on each device, in bytes.

    Gradients and messages count as any list holds them at least; `simulator.memory` counts the memory of one list.

    Returns:
        The room, or None if a device has no limit or the costs lack bytes.

    Raises:
        SimulationError: A device has no room for one micro-batch.
    """
    limits = []
    for rank, device in enumerate(schedule.rank_to_device):
        memory_bytes = cluster.devices[device].memory_bytes
        if memory_bytes is None or not costs.has_bytes:
            return None
        own = [costs.stages[stage] for stage in schedule.stages_on(rank)]
        limits.append(memory_bytes - sum(cost.weight_bytes + cost.optimizer_bytes for cost in own))
    stages = range(schedule.num_stages)
    saved, kept, inputs = (
        tuple(activation_bytes(costs, part, stage) for stage in stages)
        for part in (Part.SAVED, Part.SAVED_FOR_WEIGHT, Part.INPUT)
    )
    gradients = tuple(cost.weight_bytes for cost in costs.stages)
    working = tuple(cost.working_bytes for cost in costs.stages)
    arriving, outputs, handed = _messages(schedule, costs)
    inputs = tuple(map(min, inputs, saved))
    room = ActivationRoom(saved, kept, inputs, tuple(limits), gradients, arriving, working, outputs, handed, 1)
    return _reduced(schedule, room)


def _messages(schedule: Schedule, costs: StageCosts) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the messages in memory: `arriving`, `outputs` and `handed` of `ActivationRoom` [bytes]."""
    arriving, outputs, handed = ([0] * schedule.num_stages for _ in range(3))
    for stage in range(schedule.num_stages - 1):
        cost = costs.stages[stage]
        is_sent = schedule.homes[stage] != schedule.homes[stage + 1]
        gradient_bytes = costs.message_bytes(Message(Payload.GRADIENT, stage + 1, 0)) if is_sent else cost.output_bytes
        arriving[stage] = gradient_bytes if is_sent else 0
        handed[stage + 1] = gradient_bytes
        if not cost.output_is_saved or (is_sent and costs.compression is not None):
            outputs[stage] = gradient_bytes
    return tuple(arriving), tuple(outputs), tuple(handed)


def _counted_room(costs: StageCosts, limits: tuple[int, ...]) -> ActivationRoom:
    nothing = (0,) * costs.num_stages
    return ActivationRoom(*_counted(costs), limits, nothing, nothing, nothing, nothing, nothing)


def _counted(costs: StageCosts) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return `saved`, `kept` and `inputs` by stage, in units of which a micro-batch saves `_UNIT` on each stage."""

    def share(part: Part, stage: int, unknown: int) -> int:
        saved_bytes = activation_bytes(costs, Part.SAVED, stage)
        return _UNIT * activation_bytes(costs, part, stage) // saved_bytes if saved_bytes else unknown

    stages = range(costs.num_stages)
    kept = tuple(share(Part.SAVED_FOR_WEIGHT, stage, _UNIT) for stage in stages)
    inputs = tuple(min(_UNIT, share(Part.INPUT, stage, 0)) for stage in stages)
    return (_UNIT,) * costs.num_stages, kept, inputs


def _reduced(schedule: Schedule, room: ActivationRoom) -> ActivationRoom:
    """Return the room in the largest unit, after it was seen to be enough for a micro-batch; B keeps nothing for W."""
    room = room if is_split(schedule) else replace(room, kept=room.saved)
    for rank, limit in enumerate(room.limits):
        least, beside = room.least_held(schedule, rank)
        if limit < least:
            share = max(0.0, (limit - beside) / (least - beside))
            raise SimulationError(
                f"rank {rank}: got room for {share:.3g} micro-batches, expected room for one at least; give it more "
                "memory, or smaller micro-batches"
            )
    inputs = room.inputs if recomputing_stages(schedule) else room.saved
    sizes = room.saved, room.kept, inputs, room.gradients, room.arriving, room.working, room.outputs, room.handed
    unit = math.gcd(*chain.from_iterable(sizes)) or 1
    saved, kept, inputs, gradients, arriving, working, outputs, handed = (
        tuple(size // unit for size in of_stages) for of_stages in sizes
    )
    limits = tuple(limit // unit for limit in room.limits)
    unit_bytes = unit * room.unit_bytes
    return ActivationRoom(saved, kept, inputs, limits, gradients, arriving, working, outputs, handed, unit_bytes)
