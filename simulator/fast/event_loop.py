"""The event loop of the array engine: plain Python over numbers, or the same lines compiled by numba.

It follows `simulator.engine` event by event: its queue gets the same events as SimPy's, in the same order and with the
same sums, so simultaneous events happen in the same order. A rank runs its instructions:

    WORK     its device computes; beside others where ranks share the device or messages slow it
    OWN      the device does the rank's own work, if that takes any time
    SEND     the sender's side of a transfer is posted
    RECV     the receiver's side
    REDUCE   a replica's side of a reduction
    WAIT     until a transfer or reduction is over, or some time before that
    MARK     nothing
    END      the list is over

An event is (when, number, owner). Events are a heap, in SimPy's order: by time, and at the same time by number. The
owner is a rank from 0 on, and below 0 the code that `event` returns. No event is needed if no two ranks ever compete
for anything but the two ends of a channel: `simulator.fast.run_ahead`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from pipesched.simulator.fast.loop_arrays import ALONE, MARK, OWN, RECV, REDUCE, SEND, SHARED, WAIT

ALARM, LEFT, CHUNK, ROUND, SLOW, SLOWS, SLOWED = range(7)
"""Kinds of events: the first run on something shared is over, a message has left its wire or its next chunk may, the
next round of a reduction may begin; a transfer is announced to the devices that it slows, begins to slow them, has
slowed them."""

_URGENT = 1 << 60
"""Puts an event before all others of the same time, as SimPy does with new processes."""


def event(what: int, which: int) -> int:
    """Return the owner of an event that belongs to no rank."""
    return -1 - (which * 8 + what)


def announce(which: int, now: float, number: int, events: Any) -> int:
    """Announce a transfer or reduction to the devices that it slows; return the number of the last event."""
    heappush(events, (now, number + 1 - _URGENT, event(SLOW, which)))
    return number + 1


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


EVENT_PARTS = (event, announce, take_queues)
"""The functions that the loop calls. Array arguments cost machine code more than the work: the loop has few calls."""


def run_events(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    instructions: Any, transfers: Any, reductions: Any, rules: Any, state: Any
) -> bool:
    """Work through all lists; the times are in the state.

    Returns:
        Whether all ranks finished; False if one waits forever.
    """
    _, kinds, targets, takes, seconds, utilisations, sharers = instructions
    channels, following, loads, load_bytes, load_s, wires, modes, wire_sharers, latencies = transfers[:9]
    bandwidths, queues, slowed_begins, slowed = transfers[9:]
    members, way_begins, way_queues, way_untils, way_seconds, round_begins = reductions[:6]
    round_counts, round_occupied, round_seconds, round_queue_begins, round_queues = reductions[6:]
    is_eager, chunk_bytes, slowdown, _, _, _ = rules
    at, at_s, start_s, end_s, posted, first_waiters, next_waiters = state[:7]
    due, num_due, left_bytes, phases, rounds, free_s = state[7:13]
    virtual_s, read_s, rates, alarms, num_transfers, first_runs, next_runs, run_ends, run_shares = state[13:]
    num_ranks, num_channels, num_sent = len(sharers), len(wires), len(following)
    events = [(0.0, rank, rank) for rank in range(num_ranks)]
    now, number, num_over = 0.0, num_ranks, 0
    known = departs = passes = goes_on = begins = slows = awaits = waits = ends = alarm = -1  # whose turn is next
    slow_at = slow_end = more = awaited = 0
    while events:
        now, serial, who = heappop(events)
        if who < 0:
            what, which = (-1 - who) % 8, (-1 - who) // 8
            who = -1
            if what == ALARM:
                if alarms[which] != serial:
                    continue
                runs = first_runs[which]
                over_s = run_ends[runs]
                virtual_s[which] = over_s  # and not one rounding beside it
                while runs >= 0 and run_ends[runs] <= over_s:
                    number += 1
                    heappush(events, (now, number, runs if runs < num_ranks else event(LEFT, runs - num_ranks)))
                    runs = next_runs[runs]
                first_runs[which] = runs
                if runs < 0:
                    virtual_s[which], read_s[which] = 0.0, now
                    continue
                number += 1
                alarm = which
            elif what == LEFT:
                target, due[which] = due[which], following[due[which]]
                num_due[which] -= 1
                end_s[target] = now + latencies[wires[which]]
                known = target
                if num_due[which]:
                    departs = which
            elif what == CHUNK:
                passes = which
            elif what == ROUND:
                goes_on = which
            elif what == SLOW:
                number += 1
                heappush(events, (now + max(0.0, start_s[which] - now), number, event(SLOWS, which)))
                continue
            elif what == SLOWS:
                slows = which
            else:
                ends = which
        while True:
            if known >= 0:  # a transfer or reduction has its end: its waiters continue
                over_s = end_s[known]
                waiter, first_waiters[known] = first_waiters[known], -1
                while waiter >= 0:
                    owner, waits_s = event(SLOWED, waiter - num_ranks), over_s - now
                    if waiter < num_ranks:
                        owner, waits_s = waiter, over_s - seconds[takes[at[waiter] - 1]] - now
                    number += 1
                    heappush(events, (now + max(0.0, waits_s), number, owner))
                    waiter = next_waiters[waiter]
                known = -1
            if who >= 0:  # nothing else is to happen
                rank, i = who, at[who]
                while who >= 0:
                    kind = kinds[i]
                    at_s[i] = now
                    if kind == WAIT:
                        target = targets[i]
                        over_s = end_s[target]
                        if over_s < 0.0:
                            waits, awaited = rank, target
                            at[rank], who = i + 1, -1
                            break
                        over_s -= seconds[takes[i]]
                        i += 1
                        if over_s > now:
                            number += 1
                            heappush(events, (now + (over_s - now), number, rank))
                            at[rank], who = i, -1
                        continue
                    if kind <= OWN:  # or WORK
                        takes_s = seconds[takes[i]]
                        if kind == OWN and takes_s == 0.0:
                            i += 1
                            continue
                        number += 1
                        at[rank], who = i + 1, -1
                        if sharers[rank] < 0:
                            heappush(events, (now + takes_s, number, rank))
                        else:
                            begins, runs, run_shares[rank] = sharers[rank], rank, utilisations[takes[i]]
                    elif kind <= RECV:  # or SEND
                        target = targets[i]
                        posted[target] += 1
                        i += 1
                        if (kind == SEND) if is_eager else (posted[target] == 2):
                            channel = channels[target]
                            wire = wires[channel]
                            if modes[wire] == ALONE:
                                occupied_s = load_s[loads[target]]
                                begin_s = take_queues(queues, 3 * wire, 3 * wire + 3, now, occupied_s, free_s)
                                start_s[target] = begin_s
                                if slowdown:
                                    number = announce(target, now, number, events)
                                end_s[target] = begin_s + occupied_s + latencies[wire]
                                if first_waiters[target] >= 0:
                                    known, at[rank] = target, i
                                    break
                            else:
                                num_due[channel] += 1
                                if num_due[channel] == 1:
                                    due[channel], departs = target, channel
                                    at[rank] = i
                                    break
                    elif kind == REDUCE:
                        target = targets[i]
                        posted[target] += 1
                        i += 1
                        if posted[target] == members[target - num_sent]:
                            way = channels[target] - num_channels
                            if round_begins[way] < round_begins[way + 1]:
                                phases[target - num_sent] = round_begins[way]
                                goes_on = target
                                at[rank] = i
                                break
                            begin_s = now
                            for at_queue in range(way_begins[way], way_begins[way + 1]):
                                begin_s = max(begin_s, free_s[way_queues[at_queue]])
                            for at_queue in range(way_begins[way], way_begins[way + 1]):
                                queue = way_queues[at_queue]
                                free_s[queue] = max(free_s[queue], begin_s + way_untils[at_queue])
                            start_s[target] = begin_s
                            if slowdown:
                                number = announce(target, now, number, events)
                            end_s[target] = begin_s + way_seconds[way]
                            if first_waiters[target] >= 0:
                                known, at[rank] = target, i
                                break
                    elif kind == MARK:
                        i += 1
                    else:  # the end of the list
                        num_over += 1
                        who = -1
                if known >= 0:
                    continue
                if who < 0 and begins < 0 and waits < 0:
                    break
            if departs >= 0:  # the first message that is due on a channel, whose wire is shared or passed in chunks
                target, wire = due[departs], wires[departs]
                if modes[wire] == SHARED:
                    start_s[target] = now
                    if slowdown:
                        number = announce(target, now, number, events)
                    number += 1
                    begins, runs = wire_sharers[wire], num_ranks + departs
                    takes_s, run_shares[runs] = load_s[loads[target]], 1.0
                else:
                    left_bytes[departs] = load_bytes[loads[target]]
                    passes = departs
                departs = -1
            if passes >= 0:  # the next chunk of the message
                target, wire = due[passes], wires[passes]
                size = min(left_bytes[passes], chunk_bytes)
                occupied_s = size / bandwidths[wire]
                begin_s = take_queues(queues, 3 * wire, 3 * wire + 3, now, occupied_s, free_s)
                if start_s[target] < 0.0:
                    start_s[target] = begin_s
                    if slowdown:
                        number = announce(target, now, number, events)
                what = CHUNK if size < left_bytes[passes] else LEFT
                left_bytes[passes] -= size
                number += 1
                heappush(events, (now + max(0.0, begin_s + occupied_s - now), number, event(what, passes)))
                passes = -1
            if goes_on >= 0:  # a reduction in rounds
                reduction, way = goes_on - num_sent, channels[goes_on] - num_channels
                phase = phases[reduction]
                if phase == round_begins[way + 1]:
                    end_s[goes_on] = now
                    known, goes_on = goes_on, -1
                    continue
                first, last = round_queue_begins[phase], round_queue_begins[phase + 1]
                begin_s = take_queues(round_queues, first, last, now, round_occupied[phase], free_s)
                if start_s[goes_on] < 0.0:
                    start_s[goes_on] = begin_s
                    if slowdown:
                        number = announce(goes_on, now, number, events)
                rounds[reduction] += 1
                if rounds[reduction] == round_counts[phase]:
                    phases[reduction], rounds[reduction] = phase + 1, 0
                number += 1
                over_s = now + max(0.0, begin_s + round_seconds[phase] - now)
                heappush(events, (over_s, number, event(ROUND, goes_on)))
                goes_on = -1
            if slows >= 0:  # devices, from now on until a transfer or reduction is over
                slow_at, slow_end, more = slowed_begins[channels[slows]], slowed_begins[channels[slows] + 1], 1
                awaits, slows = slows, -1
            if begins >= 0:  # an op on something that is shared; the engine's `SharedDevice` explains it
                virtual_s[begins] += (now - read_s[begins]) * rates[begins]
                run_ends[runs] = over_s = virtual_s[begins] + takes_s
                last, later = -1, first_runs[begins]
                while later >= 0 and run_ends[later] <= over_s:
                    last, later = later, next_runs[later]
                next_runs[runs] = later
                if last < 0:
                    first_runs[begins] = runs
                else:
                    next_runs[last] = runs
                alarm, begins = begins, -1
            while slow_at < slow_end and alarm < 0:  # a device is slowed by one transfer more, or less
                which = slowed[slow_at]
                virtual_s[which] += (now - read_s[which]) * rates[which]
                read_s[which] = now
                num_transfers[which] += more
                if first_runs[which] >= 0:
                    number += 1
                    alarm = which
                slow_at += 1
            if alarm >= 0:  # say when the first on it is over
                runs, total, lost = first_runs[alarm], 0.0, 0.0
                left_s = max(0.0, run_ends[runs] - virtual_s[alarm])
                while runs >= 0:  # rounded once, as `math.fsum` does (Neumaier, 1974)
                    share, runs = run_shares[runs], next_runs[runs]
                    bigger = total + share
                    lost += (total - bigger) + share if total >= share else (share - bigger) + total
                    total = bigger
                rate = 1.0 / max(1.0, total + lost)
                if num_transfers[alarm]:
                    rate /= 1.0 + slowdown
                read_s[alarm], rates[alarm], alarms[alarm] = now, rate, number
                heappush(events, (now + left_s / rate, number, event(ALARM, alarm)))
                alarm = -1
                if slow_at < slow_end:
                    continue
            if awaits >= 0:
                over_s = end_s[awaits]
                if over_s < 0.0:
                    waits, awaited = num_ranks + awaits, awaits
                else:
                    if over_s > now:
                        number += 1
                        heappush(events, (now + (over_s - now), number, event(SLOWED, awaits)))
                    else:
                        ends = awaits
                awaits = -1
            if waits >= 0:  # a rank or, above the ranks, the slowdown of a transfer waits behind the other waiters
                next_waiters[waits], last = -1, first_waiters[awaited]
                if last < 0:
                    first_waiters[awaited] = waits
                else:
                    while next_waiters[last] >= 0:
                        last = next_waiters[last]
                    next_waiters[last] = waits
                waits = -1
            if ends >= 0:
                slow_at, slow_end, more = slowed_begins[channels[ends]], slowed_begins[channels[ends] + 1], -1
                ends = -1
                continue
            if who < 0:
                break
    return num_over == num_ranks
