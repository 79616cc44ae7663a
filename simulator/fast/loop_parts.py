"""The parts of the event loop that several of its branches need, in words that numba knows too."""

from __future__ import annotations

from typing import Any

from pipesched.simulator.fast.event_queue import SLOW, SLOWED, put

_URGENT = 1 << 60
"""Puts an event before all others of the same time, as SimPy does with new processes."""


def event(what: int, which: int) -> int:
    """Return the owner of an event that belongs to no rank."""
    return -1 - (which * 8 + what)


def take_queues(queues: Any, begin: int, end: int, now: float, seconds: float, free_s: Any) -> float:
    """Occupy some queues for `seconds`, as soon as they are free; return the start [s]."""
    start_s = now
    for at in range(begin, end):
        if queues[at] >= 0 and free_s[queues[at]] > start_s:
            start_s = free_s[queues[at]]
    for at in range(begin, end):
        if queues[at] >= 0:
            free_s[queues[at]] = start_s + seconds
    return start_s


def tell_start(which: int, start_s: float, now: float, number: int, slowdown: float, starts_s: Any, events: Any) -> int:
    """Say when a transfer or reduction starts; return the number of the last event."""
    starts_s[which] = start_s
    if slowdown:
        number += 1
        put(events, now, number - _URGENT, event(SLOW, which))
    return number


def tell_end(which: int, end_s: float, now: float, number: int, instructions: Any, state: Any, events: Any) -> int:
    """Set the end of a transfer or reduction, and queue its waiters; return the number of the last event."""
    first_waiters = state[6]
    state[3][which] = end_s
    if first_waiters[which] < 0:
        return number
    takes, seconds, sharers = instructions[3], instructions[4], instructions[6]
    at, start_s, late_s, next_waiters = state[0], state[2], state[4], state[7]
    if late_s[which]:
        end_s = max(start_s[which], end_s + late_s[which])
    waiter, first_waiters[which] = first_waiters[which], -1
    while waiter >= 0:
        over_s, who = end_s, event(SLOWED, waiter - len(sharers))
        if waiter < len(sharers):
            over_s, who = end_s - seconds[takes[at[waiter] - 1]], waiter
        number += 1
        put(events, now + max(0.0, over_s - now), number, who)
        waiter = next_waiters[waiter]
    return number


def wait(waiter: int, which: int, first_waiters: Any, next_waiters: Any) -> None:
    """Add a waiter for a transfer or reduction, behind its other waiters."""
    next_waiters[waiter] = -1
    last = first_waiters[which]
    if last < 0:
        first_waiters[which] = waiter
        return
    while next_waiters[last] >= 0:
        last = next_waiters[last]
    next_waiters[last] = waiter


LOOP_PARTS = (event, take_queues, tell_start, tell_end, wait)
"""All of them, for numba."""
