"""The looks of ops: what a legend calls each kind, and its colours."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from pipesched.schedules import Average, Compute, Op, Overlap, Phase, Recv, Reduce, Reshard, Send, Step, Unshard
from pipesched.simulator.views.figure import (
    BLUE,
    FAINT_GREY,
    GREY,
    ORANGE,
    PINK,
    RED,
    SLATE,
    TEAL,
    VIOLET,
    YELLOW,
)

Face: TypeAlias = tuple[float, float, float]
"""Red, green and blue, each 0 to 1."""

# B is I and W together, and its colour lies between theirs. Blue against orange also for the colour-blind.
_PHASES = {
    Phase.FORWARD: ("forward", BLUE),
    Phase.BACKWARD: ("backward", ORANGE),
    Phase.BACKWARD_INPUT: ("backward, inputs", RED),
    Phase.BACKWARD_WEIGHT: ("backward, weights", YELLOW),
    Phase.RECOMPUTE: ("recompute", VIOLET),
}
LEGEND = (*(name for name, _ in _PHASES.values()), "reduce", "step", "average", "unshard", "reshard")
"""What legends call the kinds of boxes, in this order."""


def look(op: Op) -> tuple[str, str]:
    """Return what the legend calls a box, and its colour."""
    match op:
        case Compute():
            return _PHASES[op.phase]
        case Reduce():
            return "reduce", TEAL
        case Step():
            return "step", SLATE
        case Average():
            return "average", PINK
        case Unshard():
            return "unshard", GREY
        case Reshard():
            return "reshard", FAINT_GREY
        case Overlap() | Send() | Recv():
            raise AssertionError("halves and transfers are drawn for themselves")
        case _:
            assert_never(op)


def lighter(colour: str, lightness: float) -> Face:
    """Return a colour, written ``#rrggbb``, moved towards white: not at all at a lightness of 0, all the way at 1."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red + (1 - red) * lightness, green + (1 - green) * lightness, blue + (1 - blue) * lightness


def is_dark(face: Face) -> bool:
    """Return whether white is read better on a colour than ink."""
    return 0.299 * face[0] + 0.587 * face[1] + 0.114 * face[2] < 0.56
