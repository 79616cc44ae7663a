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
from typing import NamedTuple, final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.ops import ENDS_MICROBATCH, Compute, Message, Op, Payload, Phase, Step
from pipesched.simulator import SimulationError
from pipesched.simulator.memory import Part, activation_bytes
from pipesched.simulator.optimum.orderable_lists import is_split, recomputing_stages

_UNIT = 1_000_000
"""Units of the saved activations of a stage. Activations kept for W are counted in these units, rounded down."""


class StageRoom(NamedTuple):
    """Memory of a stage, per micro-batch where nothing else is said.

    Attributes:
        saved: Activations from the start of F to the end of B or I.
        kept: Activations from the end of I to the end of W; equal to `saved` if the backward is whole.
        inputs: Activations from F to R, if the stage recomputes.
        gradients: Weight gradients, of all micro-batches together.
        arriving: Gradient from another rank while B or I uses it.
        working: Working memory of B or I.
        outputs: Part of the output that is held until the next stage has used it.
        handed: Part of the gradient of the input that is held until the stage before has used it.
        made: The output, with the part that the activations contain.
    """

    saved: int
    kept: int
    inputs: int
    gradients: int = 0
    arriving: int = 0
    working: int = 0
    outputs: int = 0
    handed: int = 0
    made: int = 0

    @property
    def inside(self) -> int:
        """The arrived gradient and the working memory of B or I while it runs."""
        return self.arriving + self.working


@final
@dataclass(frozen=True, slots=True)
class ActivationRoom:
    """Memory per micro-batch and stage, and the limits of the ranks.

    Attributes:
        stages: Memory of each stage.
        limits: Memory limit, by rank.
        unit_bytes: Bytes of a unit; 0 if the unit is a share of a micro-batch.
    """

    stages: tuple[StageRoom, ...]
    limits: tuple[int, ...]
    unit_bytes: int = 0

    @property
    def counts_bytes(self) -> bool:
        """Whether the unit is bytes; the room then counts memory beside activations, too."""
        return self.unit_bytes > 0

    @property
    def has_large_gradients(self) -> bool:
        """Whether the gradients of some stage are at least a third of its activations per micro-batch."""
        return any(3 * stage.gradients >= stage.saved > 0 for stage in self.stages)

    def most_held(self, ops: Iterable[Op]) -> int:
        """Return a lower bound of the peak memory of a rank that runs these ops in this order."""
        held = most = 0
        parts = [op for op in ops if isinstance(op, Compute | Step)]
        rebuilt = {op.stage for op in parts if isinstance(op, Compute) and op.phase is Phase.RECOMPUTE}
        with_gradients = set[int]()
        for op in parts:
            room = self.stages[op.stage]
            if isinstance(op, Step):
                held -= room.gradients if op.stage in with_gradients else 0
                with_gradients.discard(op.stage)
                continue
            if op.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT):
                most = max(most, held + room.inside)
            match op.phase:
                case Phase.FORWARD:
                    held += room.inputs if op.stage in rebuilt else room.saved
                case Phase.RECOMPUTE:
                    held += room.saved - room.inputs
                case Phase.BACKWARD:
                    held -= room.saved
                case Phase.BACKWARD_INPUT:
                    held += room.kept - room.saved
                case Phase.BACKWARD_WEIGHT:
                    held -= room.kept
            if op.phase in ENDS_MICROBATCH and op.stage not in with_gradients:
                with_gradients.add(op.stage)
                held += room.gradients
            most = max(most, held)
        return most

    def holds(self, schedule: Schedule) -> bool:
        """Whether no rank of a schedule of these stages and ranks ever holds more than it may."""
        return all(self.most_held(row) <= limit for row, limit in zip(schedule.ops, self.limits, strict=True))

    def least_held(self, schedule: Schedule, rank: int) -> tuple[int, int]:
        """Return a lower bound of a rank's peak memory over all orders, and the part of it that is not activations.

        If the micro-batches do not all fit at once, the last one is in memory together with the gradients.
        """
        rebuilt = recomputing_stages(schedule)
        held = beside = 0
        most = 0, 0
        for stage in sorted(schedule.stages_on(rank)):
            room = self.stages[stage]
            waiting = room.inputs if stage in rebuilt else room.saved
            size = min(waiting, room.kept)
            if size and schedule.num_microbatches > self.limits[rank] // size:
                beside += room.gradients
            also = beside + room.inside
            most = max(most, (held + max(room.saved + also, room.kept + beside), also))
            held += waiting
        return most


def counted_room(schedule: Schedule, costs: StageCosts, in_flight: float) -> ActivationRoom:
    """Return the room for `in_flight` micro-batches on each rank, counted as `simulator.memory.in_flight` does.

    Raises:
        SimulationError: The room is less than one micro-batch.
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

    Gradients and messages count with the least bytes that any list holds; `simulator.memory` counts one list exactly.

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
    stages = [_stage_room(schedule, costs, stage) for stage in range(schedule.num_stages)]
    return _reduced(schedule, ActivationRoom(tuple(stages), tuple(limits), 1))


def _stage_room(schedule: Schedule, costs: StageCosts, stage: int) -> StageRoom:
    """Return the memory of a stage [bytes]."""
    cost = costs.stages[stage]
    saved, kept, inputs = (
        activation_bytes(costs, part, stage) for part in (Part.SAVED, Part.SAVED_FOR_WEIGHT, Part.INPUT)
    )
    is_last = stage == schedule.num_stages - 1
    is_sent = not is_last and schedule.homes[stage] != schedule.homes[stage + 1]
    is_held = not cost.output_is_saved or (is_sent and costs.compression is not None)
    output_bytes = 0 if is_last else _held_bytes(schedule, costs, Message(Payload.ACTIVATION, stage, 0))
    arriving = Message(Payload.GRADIENT, stage + 1, 0)
    return StageRoom(
        saved,
        kept,
        min(inputs, saved),
        cost.said("gradient_bytes"),
        _held_bytes(schedule, costs, arriving) if is_sent else 0,
        cost.working_bytes,
        output_bytes if is_held else 0,
        _held_bytes(schedule, costs, Message(Payload.GRADIENT, stage, 0)) if stage else 0,
        output_bytes,
    )


def _held_bytes(schedule: Schedule, costs: StageCosts, message: Message) -> int:
    """Return the bytes of a message between two ranks, or of its value within a rank."""
    is_sent = schedule.homes[message.stage] != schedule.homes[message.receiver]
    return costs.message_bytes(message) if is_sent else costs.value_bytes(message)


def _counted_room(costs: StageCosts, limits: tuple[int, ...]) -> ActivationRoom:
    """Return the room in units of which a micro-batch saves `_UNIT` on each stage."""

    def share(part: Part, stage: int, unknown: int) -> int:
        saved_bytes = activation_bytes(costs, Part.SAVED, stage)
        return _UNIT * activation_bytes(costs, part, stage) // saved_bytes if saved_bytes else unknown

    stages = (
        StageRoom(_UNIT, share(Part.SAVED_FOR_WEIGHT, stage, _UNIT), min(_UNIT, share(Part.INPUT, stage, 0)))
        for stage in range(costs.num_stages)
    )
    return ActivationRoom(tuple(stages), limits)


def _reduced(schedule: Schedule, room: ActivationRoom) -> ActivationRoom:
    """Return the room in the largest common unit; without I and W, no separate bytes are kept for W.

    Raises:
        SimulationError: A rank has no room for one micro-batch.
    """
    if not is_split(schedule):
        room = replace(room, stages=tuple(stage._replace(kept=stage.saved) for stage in room.stages))
    for rank, limit in enumerate(room.limits):
        least, beside = room.least_held(schedule, rank)
        if limit < least:
            share = max(0.0, (limit - beside) / (least - beside))
            raise SimulationError(
                f"rank {rank}: got room for {share:.3g} micro-batches, expected room for at least one; try more "
                "memory, or smaller micro-batches"
            )
    stages = room.stages
    if not recomputing_stages(schedule):
        stages = tuple(stage._replace(inputs=stage.saved) for stage in stages)
    unit = math.gcd(*chain.from_iterable(stages)) or 1
    stages = tuple(StageRoom(*(size // unit for size in stage)) for stage in stages)
    return ActivationRoom(stages, tuple(limit // unit for limit in room.limits), unit * room.unit_bytes)
