"""Reader and writer of the text of one op: the cells of PyTorch's CSV, and a few additions.

    compute   2F0  2B0  2I0  2W0  2R0       stage, phase, micro-batch (PyTorch's FULL_BACKWARD is B)
              2LATE_R0                      an R that waits for the gradient of its backward
              0F5@2  0F5@2+3                weights of version 2; predicted 3 steps ahead
    overlap   (0F3;3B1)OVERLAP_F_B
    message   1SEND_F3  2RECV_F3            the stage is the stage of the rank where the op stands
              1SEND_F3>2  2RECV_F3<1        the same, with the peer's rank
    stage     0UNSHARD  0RESHARD  0REDUCE_GRAD  0REDUCE_TIED  0REDUCE_NORM  0STEP  0AVERAGE

PyTorch has neither R, versions, peers, STEP nor AVERAGE, and of the reductions only REDUCE_GRAD.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import assert_never

from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.ops import (
    STAGE_WORDS,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Send,
    StageOp,
    Summed,
)

NO_PEER = -1
"""The peer of a Send or Recv whose text has none."""

_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_COMPUTE = re.compile(rf"({_NUMBER})([FBIW]|(?:LATE_)?R)({_NUMBER})(?:@({_NUMBER})(?:\+({_NUMBER}))?)?")
_OVERLAP = re.compile(r"\(([^();]*);([^();]*)\)OVERLAP_F_B")
_MESSAGE = re.compile(
    rf"({_NUMBER})(?:SEND_([FB])({_NUMBER})(?:>({_NUMBER}))?|RECV_([FB])({_NUMBER})(?:<({_NUMBER}))?)"
)
_STAGE_OPS: dict[str, Callable[[int], Op]] = {
    **{f"{Reduce.word}_{content}": partial(Reduce, content=content) for content in Summed},
    **{kind.word: kind for kind in STAGE_WORDS if kind is not Reduce},
}
_STAGE = re.compile(rf"({_NUMBER})({'|'.join(_STAGE_OPS)})")

_WITH_PEER = _MESSAGE.pattern.replace(")?", ")")
_OVERLAP_OF_TWO = rf"\({_COMPUTE.pattern};{_COMPUTE.pattern}\)OVERLAP_F_B"
OP_PATTERN = rf"^(?:{'|'.join((_COMPUTE.pattern, _WITH_PEER, _STAGE.pattern, _OVERLAP_OF_TWO))})$"
"""The texts for `parse_op_with_peer`, as a regular expression that is also valid in JSON Schema."""


def parse_op(text: str) -> Op:
    """Return the op of `text`, with nothing before or after it; a missing peer is `NO_PEER`.

    Raises:
        ScheduleError: The text is no op. The message has no place, which only the caller knows.
    """
    op = _compute(text) or _message(text) or _stage_op(text) or _overlap(text)
    if op is None:
        raise ScheduleError(
            f"got {shown(text)}, expected an op such as 2F0, 1SEND_F3, 0REDUCE_GRAD or (0F3;3B1)OVERLAP_F_B; try "
            "capitals, numbers of at most 9 digits without leading zeros, and no other text"
        )
    return op


def parse_op_with_peer(text: str) -> Op:
    """Return the op of `text`; unlike `parse_op`, refuse a Send or Recv without its peer.

    Raises:
        ScheduleError: The text is no op, or lacks its peer. The message has no place.
    """
    op = parse_op(text)
    if isinstance(op, Send | Recv) and op.peer == NO_PEER:
        raise ScheduleError(
            f"got {shown(text)}, expected the rank of the peer at the end; try {op_text(replace(op, peer=0))}"
        )
    return op


def op_text(op: Op) -> str:
    """Return the text of `op` with the peer of a Send or Recv, which ``str(op)``, PyTorch's form, leaves out."""
    match op:
        case Send(peer=peer):
            return f"{op}>{peer}"
        case Recv(peer=peer):
            return f"{op}<{peer}"
        case Compute() | Overlap() | StageOp():
            return str(op)
        case _:
            assert_never(op)


def _compute(text: str) -> Compute | None:
    match = _COMPUTE.fullmatch(text)
    if match is None:
        return None
    stage, phase, microbatch, version, lookahead = match.groups(default="0")
    numbers = int(stage), int(microbatch), int(version), int(lookahead)
    return Compute(Phase(phase[-1]), *numbers, is_late=phase.startswith("LATE_"))


def _overlap(text: str) -> Overlap | None:
    match = _OVERLAP.fullmatch(text)
    if match is None:
        return None
    first, second = _compute(match[1]), _compute(match[2])
    return None if first is None or second is None else Overlap(first, second)


def _message(text: str) -> Send | Recv | None:
    match = _MESSAGE.fullmatch(text)
    if match is None:
        return None
    stage = int(match[1])
    if match[2]:
        message = Message(Payload(match[2]), stage, int(match[3]))
        if message.receiver < 0:
            raise ScheduleError(f"got {shown(text)}, expected no gradient to leave stage 0; try removing it")
        return Send(message, NO_PEER if match[4] is None else int(match[4]))
    payload = Payload(match[5])
    maker = stage - 1 if payload is Payload.ACTIVATION else stage + 1
    if maker < 0:
        raise ScheduleError(f"got {shown(text)}, expected no activation to arrive at stage 0; try removing it")
    return Recv(Message(payload, maker, int(match[6])), NO_PEER if match[7] is None else int(match[7]))


def _stage_op(text: str) -> Op | None:
    match = _STAGE.fullmatch(text)
    return None if match is None else _STAGE_OPS[match[2]](int(match[1]))
