"""The rules of ops, for all readers: their computations, messages and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeGuard, TypeVar, assert_never

from pipesched.schedules.ops.op import (
    ENDS_MICROBATCH,
    STAGE_WORDS,
    AnyStageOp,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    PostOp,
    Recv,
    Reduce,
    Reshard,
    Send,
    StageOp,
    Step,
    Unshard,
    WorkOp,
)

_Row = TypeVar("_Row")


def for_each_word(table: Mapping[type[AnyStageOp], _Row]) -> Mapping[type[AnyStageOp], _Row]:
    """Return `table`, which has a row for every word of `StageOp`.

    Raises:
        TypeError: A word has no row.
    """
    for word in STAGE_WORDS:
        if word not in table:
            raise TypeError(f"{word.__name__}: got no row in a table of all words, expected one; add it to the table")
    return table


def computes(op: Op) -> tuple[Compute, ...]:
    """Return the computations inside `op`: one, two in an Overlap, or none in any other op."""
    if isinstance(op, Compute):
        return (op,)
    if isinstance(op, Overlap):
        return (op.first, op.second)
    if isinstance(op, (Send, Recv, StageOp)):
        return ()
    assert_never(op)


def in_flight_change(part: Compute) -> int:
    """Return the change of the number of micro-batches in flight on a stage by `part`: 1, 0 or -1.

    A micro-batch counts while its F runs, and while its last backward pass runs.
    """
    return (part.phase is Phase.FORWARD) - (part.phase in ENDS_MICROBATCH)


def occupies_device(op: Op) -> bool:
    """Return whether `op` keeps its device busy; other ops only post."""
    if isinstance(op, (PostOp, Unshard)):
        return False
    if isinstance(op, (WorkOp, Reshard)):
        return True
    assert_never(op)


def awaits_sum(op: Op) -> TypeGuard[Step | Reduce]:
    """Return whether `op` waits for the last reduction of its stage on its rank, if that is unfinished."""
    return isinstance(op, Step) or (isinstance(op, Reduce) and op.is_over_stages)


def stages_of_op(op: Op) -> tuple[int, ...]:
    """Return the stages that `op` works on: one, two for an Overlap, or none for a message."""
    if isinstance(op, Overlap):
        return op.first.stage, op.second.stage
    if isinstance(op, (Compute, StageOp)):
        return (op.stage,)
    if isinstance(op, (Send, Recv)):
        return ()
    assert_never(op)


def rewritten(op: Op, compute: Callable[[Compute], Compute], post: Callable[[Send | Recv], Send | Recv]) -> Op:
    """Return `op` with each of its computations, or the message that it posts, replaced by the result of a function."""
    match op:
        case Compute():
            return compute(op)
        case Overlap():
            return Overlap(compute(op.first), compute(op.second))
        case Send() | Recv():
            return post(op)
        case StageOp():
            return op
        case _:
            assert_never(op)


def gives(op: Compute) -> Message | None:
    """Return the message that `op` makes, if any.

    `gives` and `needs` are the only statement of the dependency rule.
    """
    match op.phase:
        case Phase.FORWARD:
            return Message(Payload.ACTIVATION, op.stage, op.microbatch)
        case Phase.BACKWARD | Phase.BACKWARD_INPUT:
            return Message(Payload.GRADIENT, op.stage, op.microbatch)
        case Phase.BACKWARD_WEIGHT | Phase.RECOMPUTE:
            return None


def needs(op: Compute, num_stages: int) -> tuple[Message, ...]:
    """Return the messages that `op` needs before it starts; the message of its own stage comes first.

    A message of the op's own stage is never sent: it orders F before R, B and I, and I before W. A late R needs the
    gradient of its backward.
    """
    match op.phase:
        case Phase.FORWARD:
            if op.stage == 0:
                return ()
            return (Message(Payload.ACTIVATION, op.stage - 1, op.microbatch),)
        case Phase.RECOMPUTE | Phase.BACKWARD | Phase.BACKWARD_INPUT:
            own = Message(Payload.ACTIVATION, op.stage, op.microbatch)
            if op.stage == num_stages - 1 or (op.phase is Phase.RECOMPUTE and not op.is_late):
                return (own,)
            return (own, Message(Payload.GRADIENT, op.stage + 1, op.microbatch))
        case Phase.BACKWARD_WEIGHT:
            return (Message(Payload.GRADIENT, op.stage, op.microbatch),)


def needs_from_others(op: Compute, num_stages: int) -> tuple[Message, ...]:
    """Return the message that `op` needs from a neighbour: the previous stage's activation, or the next one's gradient.

    The result has one message at most.
    """
    messages = needs(op, num_stages)
    return messages if op.phase is Phase.FORWARD else messages[1:]


def uses_up(op: Compute) -> bool:
    """Return whether `op` is the last user of the messages that it needs from a neighbour.

    A late R leaves the gradient to its backward.
    """
    return op.phase is not Phase.RECOMPUTE


def stages_of(ops: Iterable[Op]) -> tuple[int, ...]:
    """Return the stages that one op list computes, in ascending order."""
    return tuple(sorted({part.stage for op in ops for part in computes(op)}))


def moved(op: Op, microbatches: int, steps: Callable[[int], int]) -> Op:
    """Return `op` with higher numbers, for a place behind further micro-batches and Steps.

    Args:
        op: The op.
        microbatches: Number of further micro-batches before the op.
        steps: A function from a stage to the number of its further Steps before the op.
    """

    def compute(part: Compute) -> Compute:
        return replace(part, microbatch=part.microbatch + microbatches, version=part.version + steps(part.stage))

    def post(op: Send | Recv) -> Send | Recv:
        return replace(op, message=op.message._replace(microbatch=op.message.microbatch + microbatches))

    return rewritten(op, compute, post)
