"""The events that are to come, in SimPy's order: by time, and at the same time by number.

Those of this very time stand in a row, the others in a heap. Plain Python has lists of tuples for that, whose heap is
written in C. Machine code would count references of every tuple: it has columns of numbers, a heap in them, and a place
for the newest alarm of each of what is shared, where plain Python leaves older ones in the heap.

The queue is (heap, row) or an `EventColumns`; the loop calls the same functions for both, and numba is told which are
meant by `compiled`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

KNOWN, ALARM, LEFT, CHUNK, ROUND, SLOW, SLOWS, SLOWED = range(8)
"""What an event says: the end of a transfer is known, the first on something shared is over, a message has left its
wire or its next chunk may, the next round of a reduction may begin; a transfer is told of to the devices that it
slows, begins to slow them, has slowed them."""

INFINITE = math.inf
NOBODY = 1 << 60
"""Who the event is of when there is none."""


class EventColumns(NamedTuple):
    """A queue for machine code.

    Attributes:
        heap_s: When each event of the heap is [s]; the first is the next.
        heap_numbers: Their numbers.
        heap_whos: Who they are of.
        row_numbers: Numbers of the events of this very time, a ring.
        row_whos: Who they are of.
        alarms_s: When the newest alarm of each of what is shared is [s]; never is infinite.
        alarm_numbers: Their numbers.
        counts: How many are in the heap, where the ring begins, how many are in it, and which alarm is the first.
    """

    heap_s: Any
    heap_numbers: Any
    heap_whos: Any
    row_numbers: Any
    row_whos: Any
    alarms_s: Any
    alarm_numbers: Any
    counts: Any


def new_queue() -> Any:
    """Return an empty queue for plain Python."""
    return [], deque()


def new_columns(num_waiting: int, num_instants: int, num_shared: int) -> EventColumns:
    """Return an empty queue for machine code.

    Args:
        num_waiting: The most events that are to come, but for alarms.
        num_instants: The most of one time that are not in the heap.
        num_shared: Number of devices and wires that are shared.
    """
    import numpy as np

    heap, row = num_waiting + 1, num_instants + 1
    integers = [np.empty(size, np.int64) for size in (heap, heap, row, row, num_shared)]
    columns = np.empty(heap), *integers[:4], np.full(num_shared, np.inf), integers[4], np.zeros(4, np.int64)
    return EventColumns._make(columns)


def put(events: Any, when: float, number: int, who: int) -> None:
    """Add an event."""
    heappush(events[0], (when, number, who))


def put_alarm(events: Any, when: float, number: int, which: int) -> None:
    """Add the alarm of something shared, in place of that which it has; in the heap older ones are left."""
    heappush(events[0], (when, number, -1 - (which * 8 + ALARM)))


def put_now(events: Any, now: float, number: int, who: int) -> None:
    """Add an event of this very time, behind those that are there."""
    events[1].append((now, number, who))


def take(events: Any, now: float) -> tuple[float, int, int]:  # noqa: ARG001 -- columns do not say it again
    """Take the next event, of `NOBODY` if there is none."""
    heap, row = events
    if row and not (heap and heap[0] < row[0]):
        event: tuple[float, int, int] = row.popleft()
        return event
    return heappop(heap) if heap else (0.0, 0, NOBODY)


def _put(events: Any, when: float, number: int, who: int) -> None:
    heap_s, numbers, whos, counts = events[0], events[1], events[2], events[7]
    at = counts[0]
    counts[0] += 1
    while at > 0:
        above = (at - 1) >> 1
        if heap_s[above] < when or (heap_s[above] == when and numbers[above] < number):
            break
        heap_s[at], numbers[at], whos[at] = heap_s[above], numbers[above], whos[above]
        at = above
    heap_s[at], numbers[at], whos[at] = when, number, who


def _put_alarm(events: Any, when: float, number: int, which: int) -> None:
    alarms_s, alarm_numbers, counts = events[5:]
    alarms_s[which], alarm_numbers[which] = when, number
    first = counts[3]
    if first == which:
        for other in range(len(alarms_s)):
            if alarms_s[other] < alarms_s[first] or (
                alarms_s[other] == alarms_s[first] and alarm_numbers[other] < alarm_numbers[first]
            ):
                first = other
        counts[3] = first
    elif when < alarms_s[first] or (when == alarms_s[first] and number < alarm_numbers[first]):
        counts[3] = which


def _put_now(events: Any, now: float, number: int, who: int) -> None:  # noqa: ARG001 -- the row is of now
    numbers, whos, counts = events[3], events[4], events[7]
    at = counts[1] + counts[2]
    if at >= len(numbers):
        at -= len(numbers)
    numbers[at], whos[at] = number, who
    counts[2] += 1


def _take(events: Any, now: float) -> tuple[float, int, int]:  # noqa: C901 -- a call would count references
    heap_s, numbers, whos, row_numbers, row_whos, alarms_s, alarm_numbers, counts = events
    size, first = counts[0], counts[1]
    next_s, number, alarm = INFINITE, 0, -1
    if size:
        next_s, number = heap_s[0], numbers[0]
    if len(alarms_s):
        which = counts[3]
        if alarms_s[which] < next_s or (alarms_s[which] == next_s and alarm_numbers[which] < number):
            next_s, number, alarm = alarms_s[which], alarm_numbers[which], which
    if counts[2] and not (next_s <= now and number < row_numbers[first]):
        counts[1] = first + 1 if first + 1 < len(row_numbers) else 0
        counts[2] -= 1
        return now, row_numbers[first], row_whos[first]
    if alarm >= 0:
        put_alarm(events, INFINITE, 0, alarm)
        return next_s, number, -1 - (alarm * 8 + ALARM)
    if not size:
        return 0.0, 0, NOBODY
    event = heap_s[0], numbers[0], whos[0]
    size -= 1
    counts[0] = size
    when, number, who = heap_s[size], numbers[size], whos[size]
    at, below = 0, 1
    while below < size:
        other = below + 1
        if other < size and (
            heap_s[other] < heap_s[below] or (heap_s[other] == heap_s[below] and numbers[other] < numbers[below])
        ):
            below = other
        if when < heap_s[below] or (when == heap_s[below] and number < numbers[below]):
            break
        heap_s[at], numbers[at], whos[at] = heap_s[below], numbers[below], whos[below]
        at, below = below, 2 * below + 1
    if size:
        heap_s[at], numbers[at], whos[at] = when, number, who
    return event


IN_COLUMNS: dict[Callable[..., Any], Callable[..., Any]] = {
    put: _put,
    put_alarm: _put_alarm,
    put_now: _put_now,
    take: _take,
}
"""Of each function the one for machine code."""
