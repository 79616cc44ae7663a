"""The loop of a program whose ranks run ahead: ranks share nothing but the two ends of a channel.

    rank 0   F0 Send F1 Send ...... WAIT            runs until it has to wait for another, with a clock of its own
    rank 1   Recv WAIT F0 ...                       then the awaited rank runs, from its own time on

So the order of simultaneous events never matters, and the loop needs no event queue. Times are the same as in
`simulator.fast.event_loop`, which documents the instructions: the same maxima and the same sums.
"""

from __future__ import annotations

from typing import Any

from pipesched.simulator.fast.loop_arrays import END, OWN, RECV, REDUCE, SEND, WAIT


def run_ahead_columns(instructions: Any, transfers: Any, reductions: Any) -> tuple[tuple[Any, ...], ...]:
    """Return the columns of `loop_arrays.Instructions`, `Transfers` and `Reductions` that the loop reads.

    Other columns are left out, because handing an array to machine code takes 0.13 us, as long as fifty ops.
    """
    channels, _, loads, _, load_s, wires, _, _, latencies = transfers[:9]
    return instructions[:5], (channels, loads, load_s, wires, latencies), reductions[:5]


def run_ahead(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    instructions: Any, transfers: Any, reductions: Any, is_eager: bool, times_s: Any, state: Any
) -> bool:
    """Run all lists to their ends.

    Args:
        instructions: Columns of the instructions from `run_ahead_columns`, as lists or arrays.
        transfers: Columns of the transfers from there; every wire passes one message at a time, whole.
        reductions: Columns of the reductions from there; no reduction may have rounds.
        is_eager: Whether a transfer starts without the receiver.
        times_s: Output [s]: the time when each instruction is reached, then the starts of all transfers and reductions,
            then their ends. An unknown end is -1 if no rank waits, or -2 - r if rank r heads the queue of waiters.
        state: Five arrays that the loop initialises: next instruction by rank, rank that runs or waits behind each
            rank, time when each channel is free, number of posts by reduction, time when each queue is free.

    Returns:
        Whether all ranks finished; False if one waits forever.
    """
    begins, kinds, targets, takes, seconds = instructions
    channels, loads, load_s, wires, latencies = transfers
    members, way_begins, way_queues, way_untils, way_seconds = reductions
    at, behind, free_s, posted, queue_free_s = state
    num_ranks, num_channels, num_sent = len(at), len(free_s), len(loads)
    starts = len(kinds)
    ends = starts + num_sent + len(members)
    for number in range(starts, len(times_s)):
        times_s[number] = -1.0
    for rank in range(num_ranks):
        at[rank], behind[rank] = begins[rank], rank + 1
        times_s[begins[rank]] = 0.0
    for channel in range(num_channels):
        free_s[channel] = 0.0
    for reduction in range(len(members)):
        posted[reduction] = 0
    for queue in range(len(queue_free_s)):
        queue_free_s[queue] = 0.0
    num_over, rank = 0, 0 if num_ranks else -1
    if num_ranks:
        behind[num_ranks - 1] = -1
    while rank >= 0:
        i, following = at[rank], behind[rank]
        now = times_s[i]
        while True:
            kind = kinds[i]
            times_s[i] = now
            known = -1
            if kind <= OWN:  # or WORK
                now += seconds[takes[i]]
            elif kind == WAIT:
                end_s = times_s[ends + targets[i]]
                if end_s < 0.0:
                    at[rank], behind[rank] = i, int(-end_s) - 2
                    times_s[ends + targets[i]] = -2.0 - rank
                    break
                if end_s > now:
                    now += end_s - now
            elif kind <= RECV:  # or SEND
                target = targets[i]
                start_s = times_s[starts + target]
                if is_eager:
                    has_met = kind == SEND
                else:
                    has_met = start_s >= 0.0
                    if not has_met:
                        times_s[starts + target] = now
                if has_met:
                    load, channel = loads[target], channels[target]
                    begin_s = start_s if start_s > now else now  # the other side may have been ahead
                    if free_s[channel] > begin_s:
                        begin_s = free_s[channel]
                    left_s = begin_s + load_s[load]
                    free_s[channel] = left_s
                    over_s = left_s + latencies[wires[channel]]
                    times_s[starts + target], known = begin_s, target
            elif kind == REDUCE:
                target = targets[i]
                reduction, way = target - num_sent, channels[target] - num_channels
                begin_s = max(now, times_s[starts + target])
                posted[reduction] += 1
                if posted[reduction] == members[reduction]:
                    for place in range(way_begins[way], way_begins[way + 1]):
                        begin_s = max(begin_s, queue_free_s[way_queues[place]])
                    for place in range(way_begins[way], way_begins[way + 1]):
                        queue = way_queues[place]
                        queue_free_s[queue] = max(queue_free_s[queue], begin_s + way_untils[place])
                    over_s, known = begin_s + way_seconds[way], target
                times_s[starts + target] = begin_s
            elif kind == END:
                num_over += 1
                break
            i += 1
            if known >= 0:
                waits = times_s[ends + known]
                times_s[ends + known] = over_s
                waiter = int(-waits) - 2
                while waiter >= 0:
                    later, behind[waiter] = behind[waiter], following
                    following, waiter = waiter, later
        rank = following
    return num_over == num_ranks
