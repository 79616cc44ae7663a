"""The queue of future events, in SimPy's order: by time, and at the same time by number.

Events of the current time are in a row, all others in a heap. Plain Python uses lists of tuples, with the heap of the
standard library. Machine code would count references of every tuple, so it uses columns of numbers. A rank, a channel
and an alarm have at most one event each. Each has a slot, and a tournament between the slots finds the next event. The
few other events are in a heap. Plain Python leaves older alarms in its heap.

The queue is (heap, row) or an `EventColumns`. The loop calls the same functions for both, and `compiled` selects the
functions for numba.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

ALARM, LEFT, CHUNK, ROUND, SLOW, SLOWS, SLOWED = range(7)
"""Kinds of events: the first run on something shared is over, a message has left its wire or its next chunk may, the
next round of a reduction may begin; a transfer is announced to the devices that it slows, begins to slow them, has
slowed them."""

INFINITE = math.inf
NOBODY = 1 << 60
"""The owner of the event of an empty queue."""
EMPTY = 1 << 62
"""Number of the event in a slot that has none."""


class EventColumns(NamedTuple):
    """A queue for machine code.

    Attributes:
        slot_whos: The owner of each slot: a rank, channel or alarm.
        node_s: Times of a tournament [s], infinite without event: node k is the earlier event of nodes 2 k and 2 k + 1,
            node 1 the next of all, and the second half are the slots.
        node_numbers: Event numbers of the nodes.
        node_slots: Slots of the nodes.
        heap_s: Times of the other events, as a heap [s].
        heap_numbers: Their event numbers.
        heap_whos: Their owners.
        row_numbers: Event numbers of the current time, a ring.
        row_whos: Their owners.
        counts: Number of events in the heap, first place of the ring, number of events in the ring; slots of the first
            channel and the first alarm; and the slot whose event was taken last and is still in the tree, or -1.
    """

    slot_whos: Any
    node_s: Any
    node_numbers: Any
    node_slots: Any
    heap_s: Any
    heap_numbers: Any
    heap_whos: Any
    row_numbers: Any
    row_whos: Any
    counts: Any


def new_queue() -> Any:
    """Return an empty queue for plain Python."""
    return [], deque()


def new_columns(num_ranks: int, num_channels: int, num_shared: int, num_others: int, num_instants: int) -> EventColumns:
    """Return an empty queue for machine code.

    Args:
        num_ranks: Number of ranks.
        num_channels: Number of channels, if messages have events: 0 if none has.
        num_shared: Number of devices and wires that are shared.
        num_others: The most events of others that are to come.
        num_instants: The most of one time that are in no slot.
    """
    import numpy as np

    num_slots, heap, row = num_ranks + num_channels + num_shared, num_others + 1, num_instants + 1
    num_leaves = 1 << max(1, num_slots - 1).bit_length()
    nodes = np.zeros(2 * num_leaves, np.int32)
    nodes[num_leaves:] = np.arange(num_leaves)
    for node in range(num_leaves - 1, 0, -1):
        nodes[node] = nodes[2 * node]
    counts = np.array([0, 0, 0, num_ranks, num_ranks + num_channels, -1])
    return EventColumns(
        *(np.zeros(num_leaves, np.int64), np.full(2 * num_leaves, INFINITE), np.full(2 * num_leaves, EMPTY), nodes),
        *(np.empty(heap), np.empty(heap, np.int64), np.empty(heap, np.int64)),
        *(np.empty(row, np.int64), np.empty(row, np.int64), counts),
    )


def put(events: Any, when: float, number: int, who: int) -> None:
    """Add an event."""
    heappush(events[0], (when, number, who))


def put_alarm(events: Any, when: float, number: int, which: int) -> None:
    """Add the alarm of something shared, in place of that which it has; in the heap older ones are left."""
    heappush(events[0], (when, number, -1 - (which * 8 + ALARM)))


def put_now(events: Any, now: float, number: int, who: int) -> None:
    """Add an event of the current time, behind the others."""
    events[1].append((now, number, who))


def take(events: Any, now: float) -> tuple[float, int, int]:  # noqa: ARG001 -- columns do not say it again
    """Take the next event, or one of `NOBODY` from an empty queue."""
    heap, row = events
    if row and not (heap and heap[0] < row[0]):
        event: tuple[float, int, int] = row.popleft()
        return event
    return heappop(heap) if heap else (0.0, 0, NOBODY)


def _put(events: Any, when: float, number: int, who: int) -> None:
    counts, slot = events[9], who
    if who < 0 and (-1 - who) % 8 in (CHUNK, LEFT):
        slot = counts[3] + (-1 - who) // 8
    if slot >= 0:
        _put_slot(events, when, number, who, slot)
        return
    heap_s, numbers, whos = events[4], events[5], events[6]
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
    _put_slot(events, when, number, -1 - (which * 8 + ALARM), events[9][4] + which)


def _put_slot(events: Any, when: float, number: int, who: int, slot: int) -> None:
    whos, node_s, numbers, slots, counts = events[0], events[1], events[2], events[3], events[9]
    whos[slot] = who
    if counts[5] == slot:
        counts[5] = -1
    node, first = len(whos) + slot, slot
    node_s[node], numbers[node] = when, number
    while node > 1:
        other = node ^ 1
        if node_s[other] < when or (node_s[other] == when and numbers[other] < number):
            when, number, first = node_s[other], numbers[other], slots[other]
        node >>= 1
        if first != slot and slots[node] == first:
            break
        node_s[node], numbers[node], slots[node] = when, number, first


def _put_now(events: Any, now: float, number: int, who: int) -> None:  # noqa: ARG001 -- the row is of now
    numbers, whos, counts = events[7], events[8], events[9]
    at = counts[1] + counts[2]
    if at >= len(numbers):
        at -= len(numbers)
    numbers[at], whos[at] = number, who
    counts[2] += 1


def _take(events: Any, now: float) -> tuple[float, int, int]:
    slot_whos, node_s, node_numbers, slots, heap_s, numbers, whos, row_numbers, row_whos, counts = events
    if counts[5] >= 0:
        _put_slot(events, INFINITE, EMPTY, 0, counts[5])
    size, row = counts[0], counts[1]
    next_s, number, slot = node_s[1], node_numbers[1], slots[1]
    if size and (heap_s[0] < next_s or (heap_s[0] == next_s and numbers[0] < number)):
        next_s, number, slot = heap_s[0], numbers[0], -1
    if counts[2] and not (next_s <= now and number < row_numbers[row]):
        counts[1] = row + 1 if row + 1 < len(row_numbers) else 0
        counts[2] -= 1
        return now, row_numbers[row], row_whos[row]
    if slot >= 0:
        if number == EMPTY:
            return 0.0, 0, NOBODY
        counts[5] = slot
        return next_s, number, slot_whos[slot]
    who = whos[0]
    size -= 1
    counts[0] = size
    when, last, who_last = heap_s[size], numbers[size], whos[size]
    at, below = 0, 1
    while below < size:
        other = below + 1
        if other < size and (
            heap_s[other] < heap_s[below] or (heap_s[other] == heap_s[below] and numbers[other] < numbers[below])
        ):
            below = other
        if when < heap_s[below] or (when == heap_s[below] and last < numbers[below]):
            break
        heap_s[at], numbers[at], whos[at] = heap_s[below], numbers[below], whos[below]
        at, below = below, 2 * below + 1
    if size:
        heap_s[at], numbers[at], whos[at] = when, last, who_last
    return next_s, number, who


IN_COLUMNS: dict[Callable[..., Any], Callable[..., Any]] = {
    put: _put,
    put_alarm: _put_alarm,
    put_now: _put_now,
    take: _take,
}
"""Of each function the one for machine code."""
QUEUE_PARTS = (_put_slot,)
"""The functions that these call."""
