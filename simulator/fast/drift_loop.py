"""The event loop of `fast.drift_pace`: plain Python over numbers, or the same compiled where numba is installed.

A lane is one pipeline, a place is a rank of a lane, a line is a channel of a lane. Device k is shared k, the link of
channel c is shared ``num_ranks + c``. An event is

    (when, place)                  a rank goes on
    (when, -1 - line)              a message is there
    (when, num_places + shared)    the first on a device or link is done, if that is still when it is

and what runs on a device or link is (virtual seconds at which it is over, place or line).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from pipesched.simulator.fast.drift_arrays import SEND, WORK, DriftArrays

numba: Any = import_module("numba") if find_spec("numba") else None

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    """Return `function` as machine code, which is kept on disk; without fast mathematics, so the sums are the same."""
    compiled: _F = function if numba is None else numba.njit(cache=True)(function)
    return compiled


def run_lanes(
    lists: DriftArrays, starts_s: Sequence[float], iterations: int, jitter: float = 0.0, seed: int = 0
) -> list[list[float]]:
    """Let every lane do its iterations.

    Args:
        lists: The lists, the same for every lane.
        starts_s: Start of each lane.
        iterations: At least 1.
        jitter: Sigma of a log-normal factor on the seconds of each work; 0 for none.
        seed: Seed of the factors.

    Returns:
        For each lane, when each iteration was over on all devices [s]; nothing if some rank waits forever.
    """
    num_works = len(starts_s) * iterations * lists.kinds.count(WORK)
    factors = _factors(jitter, seed, 1 << num_works.bit_length())
    ends_s = _run(_numbers(lists), starts_s if numba is None else _array(starts_s, "f8"), iterations, factors)
    return [ends_s[start : start + iterations] for start in range(0, len(ends_s), iterations)]


@lru_cache(maxsize=8)
def _factors(jitter: float, seed: int, count: int) -> Sequence[float]:
    """Return the factors in the order in which works begin, which is the same whoever begins them."""
    draw = random.Random(seed).lognormvariate
    factors = [draw(0.0, jitter) if jitter else 1.0 for _ in range(count)]
    return factors if numba is None else _array(factors, "f8")


@lru_cache(maxsize=8)
def _numbers(lists: DriftArrays) -> tuple[Sequence[Any], ...]:
    """Return the lists, in NumPy's arrays if they are for numba."""
    of_ops = lists.begins, lists.kinds, lists.channels, lists.wait_channels, lists.wait_counts, lists.numbers
    of_channels = lists.receivers, lists.lines
    of_seconds = lists.seconds, lists.latency_s, lists.transfer_s, lists.utilisations
    if numba is None:
        return *of_ops, *of_channels, *of_seconds
    return *(_array(values, "i8") for values in of_ops + of_channels), *(_array(values, "f8") for values in of_seconds)


def _array(numbers: Sequence[float], kind: str) -> Any:
    import numpy as np

    return np.array(numbers, dtype=kind)


@_compiled
def _run(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    lists: tuple[Any, ...], starts_s: Sequence[float], iterations: int, factors: Sequence[float]
) -> list[float]:
    """Return when each iteration was over on all devices [s], those of lane 0 first; none if a rank waits forever."""
    begins, kinds, channels, wait_channels, wait_counts, numbers, receivers, lines = lists[:8]
    seconds, latency_s, transfer_s, utilisations = lists[8:]
    num_lanes, num_ranks, num_channels, num_shared = len(starts_s), len(begins) - 1, len(receivers), len(utilisations)
    # of each place: a rank of a lane
    at = [begins[place % num_ranks] for place in range(num_lanes * num_ranks)]
    iteration, is_waiting = [0] * len(at), [False] * len(at)
    # of each line: a channel of a lane
    sends, recvs, met, started, arrived = [[0] * (num_lanes * num_channels) for _ in range(5)]
    is_sending = [False] * (num_lanes * num_channels)
    # of each device and link: exact processor sharing, as in `simulator.engine.device`, of equal utilisations
    virtual_s, read_s, rate, until_s = [0.0] * num_shared, [0.0] * num_shared, [1.0] * num_shared, [0.0] * num_shared
    running = [[(0.0, 0)][:0] for _ in range(num_shared)]
    ends_s = [0.0] * (num_lanes * iterations)
    begun = over = 0
    events = [(0.0, 0)][:0]
    for lane in range(num_lanes):
        for rank in range(num_ranks):
            heappush(events, (starts_s[lane], lane * num_ranks + rank))
    ready, next_ready = [0][:0], 0
    now, num_places = 0.0, len(at)
    while True:
        place = line = come = -1  # what goes on; a line that begins to send; a line whose message is there
        if next_ready < len(ready):
            place = ready[next_ready]
            next_ready += 1
        else:
            if next_ready:
                ready.clear()
                next_ready = 0
            if not events:
                break
            now, who = heappop(events)
            if who < 0:
                come = -1 - who
            elif who < num_places:
                place = who
            elif now == until_s[who - num_places]:
                which = who - num_places
                heap = running[which]
                passed_s, who = heappop(heap)
                read_s[which] = now
                if heap:
                    virtual_s[which] = passed_s
                    share = len(heap) * utilisations[which]
                    rate[which] = 1.0 / share if share > 1.0 else 1.0
                    left_s = heap[0][0] - passed_s
                    until_s[which] = now + left_s / rate[which] if left_s > 0.0 else now
                    heappush(events, (until_s[which], num_places + which))
                else:
                    virtual_s[which], until_s[which] = 0.0, -1.0
                if which < num_ranks:
                    place = who
                    at[place] += 1
                else:
                    is_sending[who] = False
                    if met[who]:
                        line = who
                    if latency_s[which - num_ranks]:
                        heappush(events, (now + latency_s[which - num_ranks], -1 - who))
                    else:
                        come = who
            else:
                continue
        while True:
            if come >= 0:
                arrived[come] += 1
                target = come // num_channels * num_ranks + receivers[come % num_channels]
                if is_waiting[target]:
                    is_waiting[target] = False
                    ready.append(target)
                come = -1
            if line >= 0:
                channel = line % num_channels
                takes_s = transfer_s[lines[channel] + started[line] % (lines[channel + 1] - lines[channel])]
                started[line] += 1
                met[line] -= 1
                which, who = num_ranks + channel, line
                if takes_s:
                    is_sending[line] = True
                    line = -1
                else:
                    if latency_s[channel]:
                        heappush(events, (now + latency_s[channel], -1 - line))
                    else:
                        come = line
                    if not met[line]:
                        line = -1
                    continue
            elif place >= 0:
                rank, lane, op = place % num_ranks, place // num_ranks, at[place]
                if op == begins[rank + 1]:
                    end = lane * iterations + iteration[place]
                    ends_s[end] = max(ends_s[end], now)
                    iteration[place] += 1
                    at[place] = begins[rank]
                    if iteration[place] == iterations:
                        over += 1
                        place = -1
                    continue
                kind = kinds[op]
                if kind != WORK:
                    at[place] = op + 1
                    channel = channels[op]
                    posted = lane * num_channels + channel
                    number = iteration[place] * (lines[channel + 1] - lines[channel]) + numbers[op]
                    if kind == SEND:
                        sends[posted] = number + 1
                        is_met = recvs[posted] > number
                    else:
                        recvs[posted] = number + 1
                        is_met = sends[posted] > number
                    if is_met:
                        met[posted] += 1
                        if not is_sending[posted]:
                            line = posted
                    continue
                channel = wait_channels[op]
                if channel >= 0:
                    before = iteration[place] * (lines[channel + 1] - lines[channel])
                    if arrived[lane * num_channels + channel] < before + wait_counts[op]:
                        is_waiting[place] = True
                        break
                takes_s = seconds[op] * factors[begun]
                begun += 1
                which, who, place = rank, place, -1
            else:
                break
            heap = running[which]
            passed_s = virtual_s[which] + (now - read_s[which]) * rate[which]
            virtual_s[which], read_s[which] = passed_s, now
            heappush(heap, (passed_s + takes_s, who))
            share = len(heap) * utilisations[which]
            rate[which] = 1.0 / share if share > 1.0 else 1.0
            left_s = heap[0][0] - passed_s
            until_s[which] = now + left_s / rate[which] if left_s > 0.0 else now
            heappush(events, (until_s[which], num_places + which))
    return ends_s if over == len(at) else ends_s[:0]
