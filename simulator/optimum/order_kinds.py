"""The parts of an order problem: the ops of one phase on one stage, and the waits between them."""

from __future__ import annotations

from typing import NamedTuple

from pipesched.schedules.ops import Compute, Phase, Step


class OrderKind(NamedTuple):
    """The ops of one phase on one stage, one of every micro-batch; a Step is of the last one alone.

    Attributes:
        op: The op of micro-batch 0, or the Step.
        rank: Rank of the stage.
        ticks: Duration of each [ticks].
    """

    op: Compute | Step
    rank: int
    ticks: int


class OrderArc(NamedTuple):
    """Each op of a kind after one of another.

    Attributes:
        before: Index of the kind that comes first.
        after: Index of the kind that waits.
        ticks: Ticks from the end of one to the start of the other, at least.
        distance: The op of micro-batch k + `distance` waits for the op of micro-batch k.
        since: The first k for which it waits.
    """

    before: int
    after: int
    ticks: int
    distance: int
    since: int = 0


def of_one_kind(op: Compute | Step) -> Compute | Step:
    """Return the op that represents its kind: the op of micro-batch 0, or the Step."""
    return op if isinstance(op, Step) else Compute(op.phase, op.stage, 0)


def is_phase(op: Compute | Step, *phases: Phase) -> bool:
    """Whether an op is of one of these phases."""
    return isinstance(op, Compute) and op.phase in phases
