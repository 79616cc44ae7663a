"""The room for activations: what a micro-batch holds on each stage, and how much a rank may hold at once.

    held on a stage    F ─────────── B            saved
                       F ───── I ─────── W        saved, from the end of I on kept
                                 └─────┘
                       F ───────────── R ─── B      inputs, from the start of R on saved

All are whole numbers of one unit: bytes, or shares of the micro-batches that `simulator.memory` counts in flight.
What a rank holds changes with its own ops alone, so a list holds the same at most whatever its ops take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Compute, Op, Phase, Schedule, stage_share
from pipesched.simulator import SimulationError
from pipesched.simulator.memory import Part, activation_bytes
from pipesched.simulator.optimum.orderable_lists import is_split, recomputing_stages

_UNIT = 1_000_000
"""Parts of what a stage saves, in which what it keeps for W is counted, rounded down."""


@final
@dataclass(frozen=True, slots=True)
class ActivationRoom:
    """What may be held.

    Attributes:
        saved: What a micro-batch holds on each stage, from the start of F to the end of B or I.
        kept: What it holds there from the end of I to the end of W; where the backward is whole, as saved.
        inputs: What it holds there from F to R, where the stage recomputes.
        limits: The most that each rank may hold.
    """

    saved: tuple[int, ...]
    kept: tuple[int, ...]
    inputs: tuple[int, ...]
    limits: tuple[int, ...]

    def most_held(self, ops: Iterable[Op]) -> int:
        """Return the most that a rank holds at once which works through these ops."""
        held = most = 0
        parts = [op for op in ops if isinstance(op, Compute)]
        rebuilt = {op.stage for op in parts if op.phase is Phase.RECOMPUTE}
        for op in parts:
            match op.phase:
                case Phase.FORWARD:
                    held += (self.inputs if op.stage in rebuilt else self.saved)[op.stage]
                case Phase.RECOMPUTE:
                    held += self.saved[op.stage] - self.inputs[op.stage]
                case Phase.BACKWARD:
                    held -= self.saved[op.stage]
                case Phase.BACKWARD_INPUT:
                    held += self.kept[op.stage] - self.saved[op.stage]
                case Phase.BACKWARD_WEIGHT:
                    held -= self.kept[op.stage]
            most = max(most, held)
        return most

    def holds(self, schedule: Schedule) -> bool:
        """Whether no rank of a schedule of these stages and ranks ever holds more than it may."""
        return all(self.most_held(row) <= limit for row, limit in zip(schedule.ops, self.limits, strict=True))

    def least_held(self, schedule: Schedule, rank: int) -> int:
        """Return the most that a rank holds at once which has one micro-batch, its W right after I."""
        rebuilt = recomputing_stages(schedule)
        held = most = 0
        for stage in sorted(schedule.stages_on(rank)):
            most = max(most, held + max(self.saved[stage], self.kept[stage]))
            held += (self.inputs if stage in rebuilt else self.saved)[stage]
        return most


def counted_room(schedule: Schedule, costs: StageCosts, in_flight: float) -> ActivationRoom:
    """Return the room of ranks that may have so many micro-batches in flight, as `simulator.memory.in_flight` counts.

    Raises:
        SimulationError: It is less than one micro-batch.
    """
    limit = round(Fraction(in_flight) / stage_share(schedule) * _UNIT)
    return _reduced(schedule, ActivationRoom(*_counted(costs), (limit,) * schedule.num_ranks))


def most_in_flight(schedule: Schedule, costs: StageCosts) -> float:
    """Return the micro-batches that are in flight at most, on the rank with most, as its list orders them."""
    room = ActivationRoom(*_counted(costs), ())
    most = max(map(room.most_held, schedule.ops), default=0)
    return float(Fraction(most, _UNIT) * stage_share(schedule))


def bytes_room(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> ActivationRoom | None:
    """Return the room that weights, gradients and the optimizer's state leave on each device, in bytes.

    Messages on their way, of which `simulator.memory` knows when they are held, are not in it.

    Returns:
        None where a device has no limit, or the costs say no bytes.

    Raises:
        SimulationError: A device has no room for one micro-batch.
    """
    limits = []
    for rank, device in enumerate(schedule.rank_to_device):
        memory_bytes = cluster.devices[device].memory_bytes
        if memory_bytes is None or not costs.has_bytes:
            return None
        own = [costs.stages[stage] for stage in schedule.stages_on(rank)]
        limits.append(memory_bytes - sum(2 * cost.weight_bytes + cost.optimizer_bytes for cost in own))
    stages = range(schedule.num_stages)
    saved, kept, inputs = (
        tuple(activation_bytes(costs, part, stage) for stage in stages)
        for part in (Part.SAVED, Part.SAVED_FOR_WEIGHT, Part.INPUT)
    )
    return _reduced(schedule, ActivationRoom(saved, kept, tuple(map(min, inputs, saved)), tuple(limits)))


def _counted(costs: StageCosts) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return what stages save, keep, and hold of their input, in units of which a micro-batch saves `_UNIT` on each."""

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
        least = room.least_held(schedule, rank)
        if limit < least:
            share = limit / least
            raise SimulationError(
                f"rank {rank}: got room for {share:.3g} micro-batches, expected room for one at least; give it more "
                "memory, or smaller micro-batches"
            )
    inputs = room.inputs if recomputing_stages(schedule) else room.saved
    unit = math.gcd(*room.saved, *room.kept, *inputs) or 1
    return ActivationRoom(
        *(tuple(size // unit for size in sizes) for sizes in (room.saved, room.kept, inputs, room.limits))
    )
