"""What people read of an op: its kind, stage and micro-batch, and names that tell Timelines apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from schedules.op import Average, Compute, Op, Overlap, Recv, Reduce, Reshard, Send, Step, Unshard
from schedules.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Label:
    """One op, for a table, a picture or a trace.

    Attributes:
        kind: ``F``, ``B``, ``I``, ``W``, ``R``, ``F+B`` (an Overlap), ``SEND_F``, ``RECV_B``, ``Step``, ``Reduce``, ...
        stage: The stage that runs the op; of an Overlap, of its first half.
        microbatch: None where the op has none; of an Overlap, of its first half.
    """

    kind: str
    stage: int
    microbatch: int | None = None


def label(op: Op) -> Label:
    """Return what people read of `op`."""
    match op:
        case Compute():
            return Label(op.phase.value, op.stage, op.microbatch)
        case Overlap():
            return Label(f"{op.first.phase.value}+{op.second.phase.value}", op.first.stage, op.first.microbatch)
        case Send():
            return Label(f"SEND_{op.message.payload.value}", op.message.stage, op.message.microbatch)
        case Recv():
            return Label(f"RECV_{op.message.payload.value}", op.message.receiver, op.message.microbatch)
        case Reduce() | Step() | Average() | Unshard() | Reshard():
            return Label(type(op).__name__, op.stage)
        case _:
            assert_never(op)


def sources(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """Return a different name for each Timeline: its source if that will do, else with its schedule, else numbered."""
    for names in ([t.source for t in timelines], [f"{t.name} {t.source}" for t in timelines]):
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(f"{t.source} {number}" for number, t in enumerate(timelines, start=1))
