"""The parts of the event loop that several of its branches need, in words that numba knows too."""

from __future__ import annotations

from heapq import heappush
from typing import Any

KNOWN, ALARM, LEFT, CHUNK, ROUND, SLOW, SLOWS, SLOWED = range(8)
"""What an event says: the end of a transfer is known, the first on something shared is over, a message has left its
wire or its next chunk may, the next round of a reduction may begin; a transfer is told of to the devices that it
slows, begins to slow them, has slowed them."""

_URGENT = 1 << 60
"""Puts an event before all others of the same time, as SimPy does with new processes."""


def event(what: int, which: int) -> int:
    """Return who an event is of that is of no rank."""
    return -1 - (which * 8 + what)


def _sum_of(running: list[tuple[float, int, float, int]]) -> float:
    """Return the sum of the utilisations, rounded once, as `math.fsum` does (Neumaier, 1974)."""
    total = lost = 0.0
    for _, _, utilisation, _ in running:
        bigger = total + utilisation
        if total >= utilisation:
            lost += (total - bigger) + utilisation
        else:
            lost += (utilisation - bigger) + total
        total = bigger
    return total + lost


def set_alarm(
    which: int, now: float, number: int, slowdown: float, events: Any, running: Any, clocks: Any, counts: Any
) -> None:
    """Say when the first op on something shared is over; the engine's `SharedDevice` explains it."""
    virtual_s, read_s, rates = clocks
    alarms, num_transfers = counts
    read_s[which] = now
    rates[which] = 1.0 / max(1.0, _sum_of(running[which]))
    if num_transfers[which]:
        rates[which] /= 1.0 + slowdown
    left_s = max(0.0, running[which][0][0] - virtual_s[which])
    alarms[which] = number
    heappush(events, (now + left_s / rates[which], number, event(ALARM, which)))


def _read(which: int, now: float, clocks: Any) -> None:
    virtual_s, read_s, rates = clocks
    virtual_s[which] += (now - read_s[which]) * rates[which]
    read_s[which] = now


def run_shared(
    which: int, takes: tuple[float, float], who: int, now: float, number: int, slowdown: float,
    events: Any, running: Any, clocks: Any, counts: Any,
) -> None:  # fmt: skip
    """Start an op of (seconds, utilisation) on something shared; when it is over that is an event of `who`."""
    _read(which, now, clocks)
    heappush(running[which], (clocks[0][which] + takes[0], number, takes[1], who))
    set_alarm(which, now, number, slowdown, events, running, clocks, counts)


def count_transfers(
    more: int, first: int, last: int, slowed: Any, now: float, number: int, slowdown: float,
    events: Any, running: Any, clocks: Any, counts: Any,
) -> int:  # fmt: skip
    """Let some devices be slowed by one more, or one less; return the number of the last event."""
    for at in range(first, last):
        which = slowed[at]
        _read(which, now, clocks)
        counts[1][which] += more
        if running[which]:
            number += 1
            set_alarm(which, now, number, slowdown, events, running, clocks, counts)
    return number


def take_queues(queues: Any, begin: int, end: int, now: float, seconds: float, free_s: Any) -> float:
    """Take some queues for so long, as soon as they are free; return from when on [s]."""
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
        heappush(events, (now, number - _URGENT, event(SLOW, which)))
    return number


def tell_end(which: int, end_s: float, now: float, number: int, ends_s: Any, first_waiters: Any, events: Any) -> int:
    """Say when a transfer or reduction ends, to who waits for it; return the number of the last event."""
    ends_s[which] = end_s
    if first_waiters[which] >= 0:
        number += 1
        heappush(events, (now, number, event(KNOWN, which)))
    return number


def wait(waiter: int, which: int, first_waiters: Any, next_waiters: Any) -> None:
    """Let one more wait for a transfer or reduction, behind those who do."""
    next_waiters[waiter] = -1
    last = first_waiters[which]
    if last < 0:
        first_waiters[which] = waiter
        return
    while next_waiters[last] >= 0:
        last = next_waiters[last]
    next_waiters[last] = waiter


LOOP_PARTS = (event, _sum_of, set_alarm, _read, run_shared, count_transfers, take_queues, tell_start, tell_end, wait)
"""All of them, for numba."""
