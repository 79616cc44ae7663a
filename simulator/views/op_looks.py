"""The looks of ops, of causes of idle time and of kinds of bytes: their names in legends, and their colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple, TypeAlias, assert_never

from pipesched.schedules import Timeline
from pipesched.schedules.ops import (
    Average,
    Compute,
    Op,
    Overlap,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    StageOp,
    Step,
    Unshard,
    for_each_word,
)
from pipesched.simulator.views.figure import (
    BLUE,
    BROWN,
    DARK_GREEN,
    DARK_TEAL,
    DARK_VIOLET,
    FAINT_GREY,
    GREEN,
    GREY,
    HAND_OVER,
    LIME,
    OLIVE,
    ORANGE,
    PALE_GREY,
    PINK,
    RED,
    SLATE,
    TEAL,
    VIOLET,
    YELLOW,
)

Face: TypeAlias = tuple[float, float, float]
"""Red, green and blue, each 0 to 1."""


class WordLook(NamedTuple):
    """The look of an op: its name in legends, its colour, and its letter in a terminal."""

    name: str
    colour: str
    letter: str


# B is I and W together, and its colour lies between theirs. Blue against orange also for the colour-blind.
_PHASES = {
    Phase.FORWARD: ("forward", BLUE),
    Phase.BACKWARD: ("backward", ORANGE),
    Phase.BACKWARD_INPUT: ("backward, inputs", RED),
    Phase.BACKWARD_WEIGHT: ("backward, weights", YELLOW),
    Phase.RECOMPUTE: ("recompute", VIOLET),
}
_LATE = "late recompute", DARK_VIOLET
"""An R that waits for the gradient."""
WORD_LOOKS = for_each_word(
    {
        Reduce: WordLook("reduce", TEAL, "+"),
        Step: WordLook("step", SLATE, "S"),
        Average: WordLook("average", PINK, "A"),
        Unshard: WordLook("unshard", GREY, "u"),
        Reshard: WordLook("reshard", FAINT_GREY, "r"),
    }
)
"""The look of each op on all weights or gradients of a stage."""
LEGEND = (*(name for name, _ in _PHASES.values()), _LATE[0], *(look.name for look in WORD_LOOKS.values()))
"""The kinds of boxes by their names in legends, in this order."""

CAUSE_LOOKS = {
    "warmup": (PALE_GREY, "before the first work of the device"),
    "upstream": (GREEN, "an activation was still being computed"),
    "downstream": (DARK_GREEN, "a gradient was still being computed"),
    "busy_link": (BROWN, "the channel was busy, or no buffer was posted"),
    "transfer": (LIME, "the message was travelling"),
    "hand_over": (HAND_OVER, "a rank was posting or taking a message, or between two ops"),
    "collective": (DARK_TEAL, "a step waited for the gradients of other replicas"),
    "overhead": (OLIVE, "everything was there"),
    "cooldown": (PALE_GREY, "after the last work of the device"),
}
"""The colour of each cause of idle time, and its meaning, in the order of `CAUSES`."""
_KIND_COLOURS = (BLUE, PINK, PALE_GREY, RED, YELLOW, SLATE, HAND_OVER, TEAL, VIOLET, ORANGE)
"""Colours of the kinds of bytes, in turn."""


def kind_looks(timelines: Sequence[Timeline]) -> dict[str, Face]:
    """Return the colour of each kind of bytes that devices hold, independent of the other kinds that are held."""
    samples = [sample for timeline in timelines for sample in timeline.memory]
    held = {kind for sample in samples for kind, num_bytes in sample.bytes_by_kind if num_bytes}
    kinds = dict.fromkeys(kind for sample in samples for kind, _ in sample.bytes_by_kind)
    return {kind: lighter(colour, 0.35) for kind, colour in zip(kinds, cycle(_KIND_COLOURS)) if kind in held}


def look(op: Op) -> tuple[str, str]:
    """Return the legend's name of a box, and its colour."""
    match op:
        case Compute():
            return _LATE if op.is_late else _PHASES[op.phase]
        case StageOp():
            return WORD_LOOKS[type(op)][:2]
        case Overlap() | Send() | Recv():
            raise AssertionError("halves and transfers are drawn for themselves")
        case _:
            assert_never(op)


def lighter(colour: str, lightness: float) -> Face:
    """Return a colour, written ``#rrggbb``, moved towards white: not at all at a lightness of 0, all the way at 1."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red + (1 - red) * lightness, green + (1 - green) * lightness, blue + (1 - blue) * lightness


def is_dark(face: Face) -> bool:
    """Return whether white text is more readable on a colour than dark text."""
    return 0.299 * face[0] + 0.587 * face[1] + 0.114 * face[2] < 0.56


def hex_of(face: Face) -> str:
    """Return a colour as ``#rrggbb``."""
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in face)
