"""The ops: the instructions for a rank of a pipeline.

An op list is data. Nothing here computes, sends or waits; the checker, the simulator and the executor
each give these few words a meaning of their own.

The letters follow ``torch.distributed.pipelining``: F forward, B full backward, I backward for inputs,
W backward for weights. (The zero-bubble paper, arXiv:2401.10241, writes B for our I.) R is recompute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias, assert_never


class Phase(StrEnum):
    """The kinds of computation; the values are the letters of the text form."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    RECOMPUTE = "R"


class Payload(StrEnum):
    """The content of a message; the values are the suffixes of ``SEND_F`` and ``SEND_B``."""

    ACTIVATION = "F"
    GRADIENT = "B"


class Message(NamedTuple):
    """The one tensor that `stage` hands on for `microbatch`.

    An activation goes to ``stage + 1``, a gradient to ``stage - 1``. A tuple, as it is used as a key.
    """

    payload: Payload
    stage: int
    microbatch: int

    @property
    def receiver(self) -> int:
        """The stage that this message is for."""
        return self.stage + 1 if self.payload is Payload.ACTIVATION else self.stage - 1

    @property
    def origin(self) -> int:
        """The stage whose output this is, or the gradient of it: one has the size of the other."""
        return self.stage if self.payload is Payload.ACTIVATION else self.stage - 1


@dataclass(frozen=True, slots=True)
class Compute:
    """Run one phase of one stage on one micro-batch.

    Attributes:
        version: Number of optimizer steps of the weights that this op reads, counted from the start
            of the schedule.
        lookahead: Above 0: read weights predicted this many steps ahead of `version`.
    """

    phase: Phase
    stage: int
    microbatch: int
    version: int = 0
    lookahead: int = 0

    def __str__(self) -> str:
        text = f"{self.stage}{self.phase.value}{self.microbatch}"
        if self.version or self.lookahead:
            text += f"@{self.version}"
        if self.lookahead:
            text += f"+{self.lookahead}"
        return text


@dataclass(frozen=True, slots=True)
class Overlap:
    """Run two computations together (DualPipe's forward beside a backward)."""

    first: Compute
    second: Compute

    def __str__(self) -> str:
        return f"({self.first};{self.second})OVERLAP_F_B"


@dataclass(frozen=True, slots=True)
class Send:
    """Post `message` to rank `peer`; never wait."""

    message: Message
    peer: int

    def __str__(self) -> str:
        return f"{self.message.stage}SEND_{self.message.payload.value}{self.message.microbatch}"


@dataclass(frozen=True, slots=True)
class Recv:
    """Post the buffer for `message` from rank `peer`; never wait (the Compute that needs it waits)."""

    message: Message
    peer: int

    def __str__(self) -> str:
        return f"{self.message.receiver}RECV_{self.message.payload.value}{self.message.microbatch}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum the gradients of `stage` over its replicas."""

    stage: int

    def __str__(self) -> str:
        return f"{self.stage}REDUCE_GRAD"


@dataclass(frozen=True, slots=True)
class Step:
    """Step the optimizer of `stage`: version v becomes v + 1."""

    stage: int

    def __str__(self) -> str:
        return f"{self.stage}STEP"


@dataclass(frozen=True, slots=True)
class Average:
    """Average `stage` elastically with its reference model (AvgPipe)."""

    stage: int

    def __str__(self) -> str:
        return f"{self.stage}AVERAGE"


@dataclass(frozen=True, slots=True)
class Unshard:
    """Gather the sharded weights of `stage` (PyTorch's FSDP); nothing to do for whole weights."""

    stage: int

    def __str__(self) -> str:
        return f"{self.stage}UNSHARD"


@dataclass(frozen=True, slots=True)
class Reshard:
    """Drop the gathered weights of `stage` again (PyTorch's FSDP); nothing to do for whole weights."""

    stage: int

    def __str__(self) -> str:
        return f"{self.stage}RESHARD"


ENDS_MICROBATCH = (Phase.BACKWARD, Phase.BACKWARD_WEIGHT)
"""The phases whose end is the end of a micro-batch on its stage: its gradient is in, its activations are free."""

WorkOp: TypeAlias = Compute | Overlap | Step | Average
"""Ops that keep a device busy, for the seconds in the costs."""

PostOp: TypeAlias = Send | Recv | Reduce
"""Ops that only post: the rank continues with the next op at once, and the posted action happens beside that."""

StageOp: TypeAlias = Reduce | Step | Average | Unshard | Reshard
"""Ops on all weights or gradients of a stage, for no micro-batch."""

Op: TypeAlias = WorkOp | PostOp | StageOp
"""Closed on purpose: a new kind of op must be given a meaning in every reader."""


def computes(op: Op) -> tuple[Compute, ...]:
    """Return the computations inside `op`: one, two for an Overlap, none for all else."""
    if isinstance(op, Compute):
        return (op,)
    if isinstance(op, Overlap):
        return (op.first, op.second)
    if isinstance(op, (Send, Recv, Reduce, Step, Average, Unshard, Reshard)):
        return ()
    assert_never(op)


def in_flight_change(part: Compute) -> int:
    """Return by how much `part` changes the number of micro-batches in flight on its stage: 1, 0 or -1.

    A micro-batch counts while its F runs, and while its last backward pass runs.
    """
    return (part.phase is Phase.FORWARD) - (part.phase in ENDS_MICROBATCH)


def occupies_device(op: Op) -> bool:
    """Return whether `op` keeps its device busy; other ops only post, and run beside the device's work."""
    if isinstance(op, PostOp):
        return False
    if isinstance(op, (WorkOp, Unshard, Reshard)):
        return True
    assert_never(op)


def stages_of_op(op: Op) -> tuple[int, ...]:
    """Return the stages that `op` works on: one, two for an Overlap, none for a message, which is between two."""
    if isinstance(op, Overlap):
        return op.first.stage, op.second.stage
    if isinstance(op, (Compute, StageOp)):
        return (op.stage,)
    if isinstance(op, (Send, Recv)):
        return ()
    assert_never(op)


def rewritten(op: Op, compute: Callable[[Compute], Compute], post: Callable[[Send | Recv], Send | Recv]) -> Op:
    """Return `op` with each computation in it, or the message that it posts, replaced by the result of a function."""
    match op:
        case Compute():
            return compute(op)
        case Overlap():
            return Overlap(compute(op.first), compute(op.second))
        case Send() | Recv():
            return post(op)
        case Step() | Reduce() | Average() | Unshard() | Reshard():
            return op
        case _:
            assert_never(op)


def gives(op: Compute) -> Message | None:
    """Return the message that `op` makes, if any.

    With `needs`, the only statement of the dependency rule.
    """
    match op.phase:
        case Phase.FORWARD:
            return Message(Payload.ACTIVATION, op.stage, op.microbatch)
        case Phase.BACKWARD | Phase.BACKWARD_INPUT:
            return Message(Payload.GRADIENT, op.stage, op.microbatch)
        case Phase.BACKWARD_WEIGHT | Phase.RECOMPUTE:
            return None


def needs(op: Compute, num_stages: int) -> tuple[Message, ...]:
    """Return the messages that must be there before `op` may start; its own stage's come first.

    A message of the op's own stage never travels: it puts F before R, B and I, and I before W.
    """
    match op.phase:
        case Phase.FORWARD:
            if op.stage == 0:
                return ()
            return (Message(Payload.ACTIVATION, op.stage - 1, op.microbatch),)
        case Phase.RECOMPUTE:
            return (Message(Payload.ACTIVATION, op.stage, op.microbatch),)
        case Phase.BACKWARD | Phase.BACKWARD_INPUT:
            own = Message(Payload.ACTIVATION, op.stage, op.microbatch)
            if op.stage == num_stages - 1:
                return (own,)
            return (own, Message(Payload.GRADIENT, op.stage + 1, op.microbatch))
        case Phase.BACKWARD_WEIGHT:
            return (Message(Payload.GRADIENT, op.stage, op.microbatch),)


def needs_from_others(op: Compute, num_stages: int) -> tuple[Message, ...]:
    """Return the message that `op` needs of another stage: the activation from before, or the gradient from behind.

    There is one such message at most.
    """
    messages = needs(op, num_stages)
    return messages if op.phase is Phase.FORWARD else messages[1:]


def forward(stage: int, microbatch: int, version: int = 0) -> Compute:
    """Return F of a stage and micro-batch."""
    return Compute(Phase.FORWARD, stage, microbatch, version)


def backward(stage: int, microbatch: int, version: int = 0) -> Compute:
    """Return B of a stage and micro-batch."""
    return Compute(Phase.BACKWARD, stage, microbatch, version)


def backward_input(stage: int, microbatch: int, version: int = 0) -> Compute:
    """Return I of a stage and micro-batch."""
    return Compute(Phase.BACKWARD_INPUT, stage, microbatch, version)


def backward_weight(stage: int, microbatch: int, version: int = 0) -> Compute:
    """Return W of a stage and micro-batch."""
    return Compute(Phase.BACKWARD_WEIGHT, stage, microbatch, version)
