"""Cells: the representation of ops in columns of numbers, and the conversion of a cell to its op.

op           0F3   0SEND_F3   1STEP   (1F1;1B0)OVERLAP_F_B
code         F     SEND_F     STEP    F + OVERLAPPED   B
stage        0     0          1       1                1
microbatch   3     3          0       1                0
"""

from __future__ import annotations

from typing import assert_never, final

from pipesched.schedules.ops import (
    AnyStageOp,
    Average,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    StageOp,
    Step,
    Summed,
    Unshard,
    for_each_word,
)

(
    F, B, I, W, R, LATE_R, SEND_F, SEND_B, RECV_F, RECV_B, REDUCE, UNSHARD, STEP, AVERAGE, RESHARD,  # noqa: E741
) = range(15)  # fmt: skip
"""Codes of the content of a cell.

The order has a meaning: from `SEND_F` to `UNSHARD` ops post, and between `UNSHARD` and `RESHARD` they are `WeightsOp`.
"""

OVERLAPPED = 32
"""Added to the code of the first of two neighbours that are an Overlap; above all codes."""

_PHASES = (
    Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE, Phase.RECOMPUTE,
)  # fmt: skip
"""The phase of each code below `SEND_F`."""

CONTENTS = tuple(Summed)
"""The content of a Reduce, by the number in the column of peers and versions."""

_STAGE_OPS: tuple[type[AnyStageOp], ...] = (Reduce, Unshard, Step, Average, Reshard)
_NUMBER_OF_CONTENT = {content: number for number, content in enumerate(CONTENTS)}
_CODE_OF_PHASE = {phase: _PHASES.index(phase) for phase in Phase}
_CODE_OF_WORD = for_each_word({word: code for code, word in enumerate(_STAGE_OPS, REDUCE)})


def cell_code(kind: Phase | type[AnyStageOp], *, is_overlapped: bool = False) -> int:
    """Return the code of a computation, or of an op on all of a stage.

    Args:
        kind: Phase of the computation, or class of the op.
        is_overlapped: Whether the op is the first part of an Overlap.
    """
    code = _CODE_OF_PHASE[kind] if isinstance(kind, Phase) else _CODE_OF_WORD[kind]
    return code + OVERLAPPED * is_overlapped


def op_of_cell(code: int, stage: int, microbatch: int, other: int, lookahead: int) -> Op:
    """Return the op of a cell."""
    if code < SEND_F:
        return Compute(_PHASES[code], stage, microbatch, other, lookahead, is_late=code == LATE_R)
    if code == REDUCE:
        return Reduce(stage, CONTENTS[other])
    if code > REDUCE:
        return _STAGE_OPS[code - REDUCE](stage)
    payload = Payload.ACTIVATION if code in (SEND_F, RECV_F) else Payload.GRADIENT
    return (Send if code <= SEND_B else Recv)(Message(payload, stage, microbatch), other)


@final
class GrowingCells:
    """Columns that grow op by op."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.stages: list[int] = []
        self.microbatches: list[int] = []
        self.others: list[int] = []
        self.lookaheads: list[int] = []

    def add(self, op: Op) -> None:
        match op:
            case Compute():
                self._compute(op, 0)
            case Send(message, peer) | Recv(message, peer):
                code = SEND_F if isinstance(op, Send) else RECV_F
                code += message.payload is Payload.GRADIENT
                self._cell(code, message.stage, message.microbatch, peer, 0)
            case Overlap(first, second):
                self._compute(first, OVERLAPPED)
                self._compute(second, 0)
            case Reduce():
                self._cell(REDUCE, op.stage, 0, _NUMBER_OF_CONTENT[op.content], 0)
            case StageOp():
                self._cell(_CODE_OF_WORD[type(op)], op.stage, 0, 0, 0)
            case _:
                assert_never(op)

    def _compute(self, part: Compute, overlapped: int) -> None:
        code = (LATE_R if part.is_late else _CODE_OF_PHASE[part.phase]) + overlapped
        self._cell(code, part.stage, part.microbatch, part.version, part.lookahead)

    def _cell(self, code: int, stage: int, microbatch: int, other: int, lookahead: int) -> None:
        self.codes.append(code)
        self.stages.append(stage)
        self.microbatches.append(microbatch)
        self.others.append(other)
        self.lookaheads.append(lookahead)
