"""The event loop of `simulator.side_by_side`: plain Python over numbers, or the same compiled where numba is installed.

A lane is one pipeline. Device k is shared k, the link of channel c is shared ``num_ranks + c``. An event is

    (when, a number that breaks ties, lane, rank)          a rank goes on
    (when, a number that breaks ties, lane, -1 - channel)  a message is there
    (when, its alarm, -1, shared)                          the first on a device or link is done

and what runs on a device or link is (virtual seconds at which it is over, a number that breaks ties, lane, index).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any, TypeVar

from simulator.in_numbers import SEND, WORK, Lists

try:
    import numba
except ImportError:
    numba = None

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    """Return `function` as machine code, which is kept on disk; without fast mathematics, so the sums are the same."""
    return function if numba is None else numba.njit(cache=True)(function)


def race(
    lists: Lists, starts_s: Sequence[float], iterations: int, jitter: float = 0.0, seed: int = 0
) -> list[list[float]]:
    """Let every lane do its iterations.

    Args:
        lists: Of each.
        starts_s: Of each.
        iterations: At least 1.
        jitter: Sigma of a log-normal factor on the seconds of each work; 0 for none.
        seed: Of the factors.

    Returns:
        For each lane, when each iteration was over on all devices [s]; nothing if some rank waits forever.
    """
    num_works = len(starts_s) * iterations * lists.kinds.count(WORK)
    factors = _factors(jitter, seed, 1 << num_works.bit_length())
    if numba is None:
        ends_s = _run(lists, starts_s, iterations, factors)
    else:
        ends_s = _run(_in_arrays(lists), _array(starts_s, "f8"), iterations, factors)
    return [ends_s[start : start + iterations] for start in range(0, len(ends_s), iterations)]


@lru_cache(maxsize=8)
def _factors(jitter: float, seed: int, count: int) -> Sequence[float]:
    """Return the factors in the order in which works begin, which is the same whoever begins them."""
    draw = random.Random(seed).lognormvariate
    factors = [draw(0.0, jitter) if jitter else 1.0 for _ in range(count)]
    return factors if numba is None else _array(factors, "f8")


def _in_arrays(lists: Lists) -> Lists:
    seconds = ("seconds", "latency_s", "transfer_s", "utilisations")
    return Lists(*(_array(getattr(lists, name), "f8" if name in seconds else "i8") for name in Lists._fields))


def _array(numbers: Sequence[float], kind: str) -> Any:
    import numpy as np

    return np.array(numbers, dtype=kind)


@_compiled
def _run(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    lists: Lists, starts_s: Sequence[float], iterations: int, factors: Sequence[float]
) -> list[float]:
    """Return when each iteration was over on all devices [s], those of lane 0 first; none if a rank waits forever."""
    begins, kinds, channels, seconds, waits, wait_channels, wait_counts = lists[:7]
    receivers, latency_s, lines, transfer_s, utilisations = lists[7:]
    num_lanes, num_ranks, num_channels, num_shared = len(starts_s), len(begins) - 1, len(receivers), len(utilisations)
    # of each lane and rank
    at = [begins[place % num_ranks] for place in range(num_lanes * num_ranks)]
    iteration, is_waiting = [0] * len(at), [False] * len(at)
    # of each lane and channel
    sends, recvs, started, arrived = [[0] * (num_lanes * num_channels) for _ in range(4)]
    is_sending = [False] * (num_lanes * num_channels)
    # of each device and link: exact processor sharing, as in `simulator.device`, of equal utilisations
    virtual_s, read_s, rate, alarm = [0.0] * num_shared, [0.0] * num_shared, [1.0] * num_shared, [0] * num_shared
    running = [[(0.0, 0, 0, 0)][:0] for _ in range(num_shared)]
    ends_s = [0.0] * (num_lanes * iterations)
    begun = over = number = 0
    events = [(0.0, 0, 0, 0)][:0]
    for lane in range(num_lanes):
        for rank in range(num_ranks):
            number += 1
            heappush(events, (starts_s[lane], number, lane, rank))
    while events:
        now, alarmed, lane, index = heappop(events)
        rank = posted = come = -1  # that goes on; a channel whose link may begin; a channel whose message is there
        if lane >= 0:
            if index >= 0:
                rank = index
            else:
                come = -1 - index
        elif alarmed == alarm[index]:
            which = index
            virtual_s[which], _, lane, index = heappop(running[which])
            read_s[which] = now
            if running[which]:
                number += 1
                alarm[which], rate[which] = number, 1.0 / max(1.0, len(running[which]) * utilisations[which])
                left_s = max(0.0, running[which][0][0] - virtual_s[which])
                heappush(events, (now + left_s / rate[which], number, -1, which))
            else:
                virtual_s[which], alarm[which] = 0.0, 0
            if index >= 0:
                rank = index
                at[lane * num_ranks + rank] += 1
            else:
                posted = -1 - index
                is_sending[lane * num_channels + posted] = False
                if latency_s[posted]:
                    number += 1
                    heappush(events, (now + latency_s[posted], number, lane, index))
                else:
                    come = posted
        else:
            continue
        while True:
            if come >= 0:
                arrived[lane * num_channels + come] += 1
                place = lane * num_ranks + receivers[come]
                if is_waiting[place]:
                    is_waiting[place] = False
                    number += 1
                    heappush(events, (now, number, lane, receivers[come]))
                come = -1
            if posted >= 0:
                place = lane * num_channels + posted
                if is_sending[place] or started[place] >= sends[place] or started[place] >= recvs[place]:
                    posted = -1
                    continue
                takes_s = transfer_s[lines[posted] + started[place] % (lines[posted + 1] - lines[posted])]
                started[place] += 1
                if not takes_s:
                    if latency_s[posted]:
                        number += 1
                        heappush(events, (now + latency_s[posted], number, lane, -1 - posted))
                    else:
                        come = posted
                    continue
                is_sending[place] = True
                which, index, posted = num_ranks + posted, -1 - posted, -1
            elif rank >= 0:
                place = lane * num_ranks + rank
                op = at[place]
                if op == begins[rank + 1]:
                    end = lane * iterations + iteration[place]
                    ends_s[end] = max(ends_s[end], now)
                    iteration[place] += 1
                    at[place] = begins[rank]
                    if iteration[place] == iterations:
                        over += 1
                        rank = -1
                    continue
                if kinds[op] != WORK:
                    posted = channels[op]
                    (sends if kinds[op] == SEND else recvs)[lane * num_channels + posted] += 1
                    at[place] = op + 1
                    continue
                for wait in range(waits[op], waits[op + 1]):
                    channel = wait_channels[wait]
                    before = iteration[place] * (lines[channel + 1] - lines[channel])
                    if arrived[lane * num_channels + channel] < before + wait_counts[wait]:
                        is_waiting[place] = True
                        break
                if is_waiting[place]:
                    break
                takes_s = seconds[op] * factors[begun]
                begun += 1
                which, index, rank = rank, rank, -1
            else:
                break
            virtual_s[which] += (now - read_s[which]) * rate[which]
            heappush(running[which], (virtual_s[which] + takes_s, number + 1, lane, index))
            number += 2
            read_s[which], alarm[which] = now, number
            rate[which] = 1.0 / max(1.0, len(running[which]) * utilisations[which])
            left_s = max(0.0, running[which][0][0] - virtual_s[which])
            heappush(events, (now + left_s / rate[which], number, -1, which))
    return ends_s if over == len(at) else ends_s[:0]
