"""The ops: the instructions for a rank of a pipeline.

An op list is data. Nothing here computes, sends or waits. The checker, the simulator and the executor each interpret
these words in their own way.

The letters follow ``torch.distributed.pipelining``: F forward, B full backward, I backward for inputs,
W backward for weights. (The zero-bubble paper, arXiv:2401.10241, writes B for our I.) R is recompute.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, TypeAlias, get_args


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


class Summed(StrEnum):
    """The content of a reduction; the values are the suffixes of ``REDUCE_``.

    GRADIENT  the gradients of a stage, over its replicas
    TIED      the gradients of the weights that some stages share, over these stages
    NORM      the squared norm of all gradients, over all stages
    """

    GRADIENT = "GRAD"
    TIED = "TIED"
    NORM = "NORM"


class Message(NamedTuple):
    """The tensor that `stage` sends to its neighbour for `microbatch`.

    An activation goes to ``stage + 1``, a gradient to ``stage - 1``. A message is a tuple because it is used as a key.
    """

    payload: Payload
    stage: int
    microbatch: int

    @property
    def receiver(self) -> int:
        """The stage that receives this message."""
        return self.stage + 1 if self.payload is Payload.ACTIVATION else self.stage - 1

    @property
    def origin(self) -> int:
        """The stage whose output, or gradient of the output, this message carries."""
        return self.stage if self.payload is Payload.ACTIVATION else self.stage - 1


@dataclass(frozen=True, slots=True)
class Compute:
    """Run one phase of one stage on one micro-batch.

    Attributes:
        version: Number of optimizer steps of the weights that this op reads, counted from the start
            of the schedule.
        lookahead: If above 0, the op reads weights predicted this number of steps ahead of `version`.
        is_late: Whether an R waits for the gradient that its backward needs; False for other phases.
    """

    phase: Phase
    stage: int
    microbatch: int
    version: int = 0
    lookahead: int = 0
    is_late: bool = False

    def __str__(self) -> str:
        text = f"{self.stage}{'LATE_' * self.is_late}{self.phase.value}{self.microbatch}"
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
class StageOp:
    """An op on all weights or gradients of `stage`, for no micro-batch: it needs no message and makes none.

    Each word is a subclass.

    Attributes:
        word: The word in the text of an op, behind the stage.
        is_torchs: Whether PyTorch's lowered lists have the word.
    """

    word: ClassVar[str]
    is_torchs: ClassVar[bool] = False

    stage: int

    def __str__(self) -> str:
        return f"{self.stage}{self.word}"


@dataclass(frozen=True, slots=True)
class WeightsOp(StageOp):
    """Work on the weights of `stage`, which keeps its device busy for the seconds in the costs."""


@dataclass(frozen=True, slots=True)
class Reduce(StageOp):
    """Add the `content` of `stage` to a sum, for which the next Step of the stage waits.

    A sum over stages is posted only after the sums of the same stage before it.
    """

    word = "REDUCE"
    is_torchs = True

    content: Summed = Summed.GRADIENT

    @property
    def is_over_stages(self) -> bool:
        """Whether it sums over stages, and not over the replicas of one stage."""
        return self.content is not Summed.GRADIENT

    @property
    def group(self) -> Group:
        """The sum: the k-th Reduces of a group on all its ranks and stages meet."""
        return self.content if self.is_over_stages else self.stage

    def __str__(self) -> str:
        return f"{self.stage}{self.word}_{self.content.value}"


@dataclass(frozen=True, slots=True)
class Step(WeightsOp):
    """Step the optimizer of `stage`: version v becomes v + 1."""

    word = "STEP"


@dataclass(frozen=True, slots=True)
class Average(WeightsOp):
    """Average `stage` elastically with its reference model (AvgPipe)."""

    word = "AVERAGE"


@dataclass(frozen=True, slots=True)
class Unshard(StageOp):
    """Gather the sharded weights of `stage` (PyTorch's FSDP); whole weights need nothing.

    The rank continues at once. Gathers of a rank run one after the other, and the next computation of the stage waits.
    """

    word = "UNSHARD"
    is_torchs = True


@dataclass(frozen=True, slots=True)
class Reshard(StageOp):
    """Drop the gathered weights of `stage` again (PyTorch's FSDP), in no time; whole weights need nothing."""

    word = "RESHARD"
    is_torchs = True


ENDS_MICROBATCH = (Phase.BACKWARD, Phase.BACKWARD_WEIGHT)
"""The phases that end a micro-batch on its stage: they complete its gradient and free its activations."""

Group: TypeAlias = int | Summed
"""The Reduces that meet: of one stage, or of everything tied, or of all stages."""

AnyWeightsOp: TypeAlias = Step | Average
"""The words of `WeightsOp`."""

WorkOp: TypeAlias = Compute | Overlap | AnyWeightsOp
"""Ops that keep a device busy, for the seconds in the costs."""

PostOp: TypeAlias = Send | Recv | Reduce
"""Ops that only post: the rank continues with its next op at once, beside the posted transfer."""

AnyStageOp: TypeAlias = Reduce | AnyWeightsOp | Unshard | Reshard
"""The words of `StageOp`."""

Op: TypeAlias = WorkOp | PostOp | AnyStageOp
"""A closed union on purpose: every reader must give a new kind of op a meaning."""

STAGE_WORDS: tuple[type[AnyStageOp], ...] = get_args(AnyStageOp)
"""The words of `StageOp`, for tables."""


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
