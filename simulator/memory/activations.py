"""The activations that a forward leaves on its rank, and until when they are held.

    F ─────────────── B          saved              F to the end of B
    F ─────── I ───── W          saved              F to the end of I
                └─────┘          saved_for_weight   the end of I to the end of W
    F ─── R ── B                 input              F to R, then saved from R on
    └─────┘

(Times run to the right; a list without the last op holds the memory to the end.) Bytes and counts of micro-batches are
both made of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from pipesched.profiles.costs import StageCosts
from pipesched.schedules.ops import Compute, Phase
from pipesched.simulator.memory.instants import NEVER, Instant, TimedOp


class Part(StrEnum):
    """The part of a micro-batch's activations that is held."""

    INPUT = "input"
    SAVED = "saved"
    SAVED_FOR_WEIGHT = "saved_for_weight"


class Activation(NamedTuple):
    """A part of the activations of one micro-batch on one stage, and when it is held."""

    part: Part
    stage: int
    since: Instant
    until: Instant


def activations(parts: Iterable[tuple[Compute, TimedOp]]) -> Iterator[Activation]:
    """Yield the activations that the forwards of one rank save.

    Args:
        parts: Every computation with its op, in the rank's order.
    """
    phases: defaultdict[tuple[int, int], dict[Phase, TimedOp]] = defaultdict(dict)
    for part, op in parts:
        phases[part.stage, part.microbatch][part.phase] = op
    for (stage, _), ops in phases.items():
        if Phase.FORWARD not in ops:
            continue
        since = ops[Phase.FORWARD].start
        if Phase.RECOMPUTE in ops:
            rebuilt = ops[Phase.RECOMPUTE].start
            yield Activation(Part.INPUT, stage, since, rebuilt)
            since = rebuilt
        backward = ops.get(Phase.BACKWARD) or ops.get(Phase.BACKWARD_INPUT)
        used = NEVER if backward is None else backward.end
        yield Activation(Part.SAVED, stage, since, used)
        if Phase.BACKWARD_INPUT in ops:
            weight = ops.get(Phase.BACKWARD_WEIGHT)
            yield Activation(Part.SAVED_FOR_WEIGHT, stage, used, NEVER if weight is None else weight.end)


def activation_bytes(costs: StageCosts, part: Part, stage: int) -> int:
    """Return the bytes of a part; 0 for the input of stage 0, which is data and not in the costs."""
    cost = costs.stages[stage]
    match part:
        case Part.INPUT:
            return costs.stages[stage - 1].output_bytes if stage else 0
        case Part.SAVED:
            return cost.saved_bytes
        case Part.SAVED_FOR_WEIGHT:
            return cost.saved_bytes if cost.saved_for_weight_bytes is None else cost.saved_for_weight_bytes
