"""Instants: the order of a rank's ops in time, including ops that take no time.

    op        F         B         Step      F
    start     (0, 0)    (1, 0)    (3, 0)    (3, 1)
    end       (1, 0)    (3, 0)    (3, 1)    (4, 0)

An instant is a time and the number of steps without time that the rank has done at that time: B is over at 3 s, then
the Step that takes no time runs, and then the next F begins. So memory during the Step alone is held at some instant,
whether the Step takes 0 s or a nanosecond. A predicted copy of the weights, too, is dropped one instant after its op
has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar, assert_never

from pipesched.schedules import Span
from pipesched.schedules.ops import Average, Compute, Op, Overlap, Recv, Reduce, Reshard, Send, Step, Unshard, computes
from pipesched.schedules.weights import looks_ahead

_State = TypeVar("_State")


class Instant(NamedTuple):
    """A time, and the number of things that were over before on the same rank at the same time."""

    time_s: float
    order: int = 0


NEVER = Instant(math.inf)


class TimedOp(NamedTuple):
    """A span whose times are instants, so that ops of no duration have an order.

    Attributes:
        over: When a predicted copy of the weights is dropped, one instant after the end; the end without a copy.
    """

    op: Op
    posted: Instant
    start: Instant
    end: Instant
    over: Instant


def holds_inside(op: Op) -> bool:
    """Return whether `op` holds memory of its own; other ops post, or leave memory as it is."""
    match op:
        case Compute() | Overlap() | Step():
            return True
        case Send() | Recv() | Reduce() | Average() | Unshard() | Reshard():
            return False
        case _:
            assert_never(op)


def timed_ops(spans: Iterable[Span]) -> list[TimedOp]:
    """Return the ops of one rank, given in its list's order; instants of other ranks begin at order 0 like its own."""
    timed = []
    now = Instant(-math.inf)
    for span in spans:
        posted = now if span.posted_s == now.time_s else Instant(span.posted_s)
        start = now if span.start_s == now.time_s else Instant(span.start_s)
        end = over = start if span.end_s == span.start_s else Instant(span.end_s)
        if holds_inside(span.op):
            if end is start:
                end = over = Instant(start.time_s, start.order + 1)
            if any(map(looks_ahead, computes(span.op))):
                over = Instant(end.time_s, end.order + 1)
            now = over
        timed.append(TimedOp(span.op, posted, start, end, over))
    return timed


def seen_at_once(states: Sequence[_State], size: Callable[[_State], float]) -> Sequence[_State]:
    """Return the states to show of one time: the last, and before it the largest in between, if that is larger.

    Args:
        states: States at the instants of that time, one after the other.
        size: Maps a state to the number that is compared.
    """
    if len(states) < 2:
        return states
    largest = max(states, key=size)
    return states[-1:] if size(largest) <= size(states[-1]) else (largest, states[-1])
