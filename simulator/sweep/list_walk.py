"""Walk lists without communication once, as a loop over numbers: what each op waits for, and what is held until when.

    rank 0   F0 ─┐ F1 ..      step      row 1 = row 0 + F            F0 is over
                 │                      row 2 = row 1 + bytes / B    its message has left: later ones of the link wait
                 └> F0 ..               row 3 = row 2 + latency      it is there
    rank 1                              row 4 = max(row 0, row 3) + F

Where lists are lowered by us and nothing is shared, a Recv is always posted when its Send comes, so a message starts
as soon as it is made and its link is free; and all messages of a link start in the order in which they are made. So
times follow from the lists without their communication. A step gives the larger of two rows, and some seconds later;
rows are given away anew when nobody needs them.

Message number stage * m + microbatch is an activation; a gradient's has all activations before it. As in
`schedules.lowering.recv_places`, a clock counts the cells of each rank that are surely over: so many are in front of a
message's Recv, from which on its buffer is held. What a rank has sent is let go when a message comes that its receiver
has made later, as in `schedules.semantics.acknowledgements`.
"""

from __future__ import annotations

from typing import Any

from pipesched.schedules import op_columns

F, B, I, W, R, STEP = (  # noqa: E741
    op_columns.F, op_columns.B, op_columns.I, op_columns.W, op_columns.R, op_columns.STEP,
)  # fmt: skip
NUM_KINDS = 6
"""Durations of a stage: those of the five phases, by their codes, and of a Step."""

DONE, OTHER, FULL = range(3)
"""What `walk` says: all is found, the lists have something else in them or cannot end, or more rows are needed."""


def walk(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    begins: Any, codes: Any, stages: Any, microbatches: Any, num_stages: int, num_microbatches: int, num_rows: int,
    has_bytes: bool, is_repeated: bool, counts: Any, homes: Any, masks: Any, made: Any, makers: Any, used_by: Any,
    recv_at: Any, gone_at: Any, slots: Any, waiters: Any, numbers: Any, following: Any, told: Any, at: Any,
    ready: Any, now: Any, clocks: Any, kept: Any, free: Any, channel_of: Any, sent: Any, gone: Any, heads: Any,
    tails: Any, used: Any, senders: Any, receivers: Any, left: Any, last_ways: Any, way_channels: Any, dests: Any,
    firsts: Any, seconds: Any, takes: Any, cells: Any, keeps: Any, owners: Any,
) -> int:  # fmt: skip
    """Find the steps of all lists.

    Args:
        begins: R + 1 indices, and then columns of n cells, as `OpColumns` has them.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_stages: How many stages there are.
        num_microbatches: m.
        num_rows: How many messages may be on their way at once.
        has_bytes: Whether it is asked what is held.
        is_repeated: Whether ops may come behind a Step of their stage, as those of the next batch do.
        counts: 2 numbers, to be written: steps and channels.
        homes: Of each micro-batch of each stage, to be written, as is all that follows: the rank of its F.
        masks: Of each the phases that are over, a bit each.
        made: Of each message the cell that makes it.
        makers: Of each the rank that makes it; -1 where nobody does.
        used_by: Of each the cell that uses it; -1 where none does.
        recv_at: Of each the cell in front of which its Recv stands, each rank having a cell more before it than the
            ranks above; -1 where maker and user share a rank.
        gone_at: Of each the cell of its sender at whose start it is let go of; -1 where that is never.
        slots: Of each its row among those of messages.
        waiters: Of each the rank that waits for it.
        numbers: Of each how many went over its channel before.
        following: Of each the next of its channel.
        told: Of each how many messages of its receiver its maker had used.
        at: Of each rank its next cell; in the end its last.
        ready: The ranks that can go on.
        now: Of each rank the row of the end of its last cell.
        clocks: R rows of R numbers, one behind the other: how many cells of each rank are surely over, for each rank.
        kept: Clocks of messages on their way, likewise.
        free: The rows of messages that are free.
        channel_of: Of each pair of ranks its channel.
        sent: Of each pair, how many messages the first has sent the second.
        gone: How many of them it has let go of.
        heads: The first that is not.
        tails: The last that was sent.
        used: How many messages of the second the first has used.
        senders: Of each channel the rank that sends.
        receivers: The rank that receives.
        left: Of each channel the row of when it is free.
        last_ways: Of each channel the last message's number among durations.
        way_channels: Of activations and gradients of each stage the channel.
        dests: Of each step the row that it gives.
        firsts: The first that it needs.
        seconds: The second.
        takes: The number of its duration: of phase or Step k of a stage, k * num_stages + stage; behind those, of
            activations and gradients of each stage, how long they keep their link, and the latency.
        cells: The cell whose work it is; -1 of messages.
        keeps: What its beginning is asked for: the rank of which it is the first, or R + the channel; -1.
        owners: The rank whose work or message it is.

    Returns:
        `DONE`, `OTHER` or `FULL`.
    """
    num_ranks, gradients = len(begins) - 1, num_stages * num_microbatches
    first_way, first_row = NUM_KINDS * num_stages, 1 + 2 * num_ranks
    first_left, num_steps, num_channels, num_optimizer_steps = first_row + num_rows, 0, 0, 0
    for i in range(gradients):
        homes[i], masks[i] = -1, 0
    for i in range(2 * gradients):
        makers[i], used_by[i], recv_at[i], gone_at[i], slots[i], waiters[i] = -1, -1, -1, -1, -1, -1
    for i in range(num_ranks * num_ranks):
        channel_of[i], sent[i], gone[i], used[i] = -1, 0, 0, 0
    for i in range(2 * num_stages):
        way_channels[i] = -1
    for i in range(num_rows):
        free[i] = i
    num_free = num_rows
    for rank in range(num_ranks):
        at[rank], ready[rank], now[rank] = begins[rank], rank, 0
        if begins[rank] == begins[rank + 1]:
            return OTHER
        for other in range(rank * num_ranks, (rank + 1) * num_ranks):
            clocks[other] = 0
        for i in range(begins[rank], begins[rank + 1]):
            if not (0 <= stages[i] < num_stages and 0 <= microbatches[i] < num_microbatches):
                return OTHER
            if codes[i] <= R and masks[stages[i] * num_microbatches] and not is_repeated:
                return OTHER  # it may read weights of before the Step
            if codes[i] == F:
                home = stages[i] * num_microbatches + microbatches[i]
                if homes[home] >= 0:
                    return OTHER
                homes[home] = rank
            elif codes[i] == STEP:
                masks[stages[i] * num_microbatches] = 1 << STEP
                num_optimizer_steps += 1
            elif codes[i] > R:
                return OTHER
    if num_optimizer_steps == 0:
        return OTHER
    num_ready = num_ranks
    while num_ready:
        num_ready -= 1
        rank = ready[num_ready]
        i, clock = at[rank], rank * num_ranks
        while i < begins[rank + 1]:
            code, stage = codes[i], stages[i]
            own = stage * num_microbatches + microbatches[i]
            message, second = -1, 0
            if code == F:
                if stage:
                    message = own - num_microbatches
            elif code <= R:
                if homes[own] != rank or masks[own] & 1 == 0 or (code == W and masks[own] & 1 << I == 0):
                    return OTHER
                if code <= I and stage + 1 < num_stages:
                    message = gradients + own + num_microbatches
            if code <= R and masks[own] & 1 << code:
                return OTHER
            if message >= 0:
                if makers[message] < 0:
                    waiters[message] = rank
                    break
                used_by[message] = i
                if slots[message] >= 0:  # it comes from another rank
                    second = first_row + slots[message]
                    if has_bytes:
                        others, peer = slots[message] * num_ranks, makers[message]
                        for other in range(num_ranks):
                            known, before = kept[others + other], clocks[clock + other]
                            clocks[clock + other] = known if known > before else before
                        pair = rank * num_ranks + peer
                        while gone[pair] < told[message]:
                            gone_at[heads[pair]] = i
                            heads[pair] = following[heads[pair]]
                            gone[pair] += 1
                        if numbers[message] >= used[pair]:
                            used[pair] = numbers[message] + 1
                    free[num_free] = slots[message]
                    num_free += 1
            if code <= R:
                masks[own] |= 1 << code
            row = 1 + 2 * rank
            row += 1 if now[rank] == row else 0
            dests[num_steps], firsts[num_steps], seconds[num_steps] = row, now[rank], second
            takes[num_steps], cells[num_steps] = (code if code <= R else R + 1) * num_stages + stage, i
            keeps[num_steps], owners[num_steps] = rank if i == begins[rank] else -1, rank
            num_steps += 1
            now[rank] = row
            i += 1
            clocks[clock + rank] = i - begins[rank]
            if code > I:
                continue
            message, receiver = (own, stage + 1) if code == F else (gradients + own, stage - 1)
            if makers[message] >= 0:
                return OTHER
            made[message], makers[message] = i - 1, rank
            if waiters[message] >= 0:
                ready[num_ready] = waiters[message]
                num_ready += 1
            if receiver < 0 or receiver == num_stages:
                continue
            peer = homes[receiver * num_microbatches + microbatches[i - 1]]
            if peer < 0:
                return OTHER
            if peer == rank:
                continue
            pair = rank * num_ranks + peer
            channel = channel_of[pair]
            keep = -1
            if channel < 0:
                channel = num_channels
                if channel == len(senders):
                    return OTHER
                channel_of[pair], senders[channel], receivers[channel], left[channel] = channel, rank, peer, 0
                keep = num_ranks + channel
                num_channels += 1
            way = stage if code == F else num_stages + stage
            if way_channels[way] < 0:
                way_channels[way] = channel
            elif way_channels[way] != channel:
                return OTHER
            if num_free == 0:
                return FULL
            num_free -= 1
            slots[message] = free[num_free]
            if has_bytes:
                recv_at[message] = begins[peer] + clocks[clock + peer] + peer
                others = slots[message] * num_ranks
                for other in range(num_ranks):
                    kept[others + other] = clocks[clock + other]
                told[message], numbers[message] = used[pair], sent[pair]
                if sent[pair] > gone[pair]:
                    following[tails[pair]] = message
                else:
                    heads[pair] = message
                tails[pair] = message
                sent[pair] += 1
            row = first_left + 2 * channel
            row += 1 if left[channel] == row else 0
            last_ways[channel] = first_way + 2 * way
            dests[num_steps], firsts[num_steps], seconds[num_steps] = row, now[rank], left[channel]
            takes[num_steps], cells[num_steps], keeps[num_steps] = first_way + 2 * way, -1, keep
            num_steps += 1
            dests[num_steps], firsts[num_steps], seconds[num_steps] = first_row + slots[message], row, 0
            takes[num_steps], cells[num_steps], keeps[num_steps] = first_way + 2 * way + 1, -1, -1
            num_steps += 1
            left[channel] = row
        at[rank] = i
    for rank in range(num_ranks):
        if at[rank] < begins[rank + 1]:
            return OTHER
    for i in range(2 * gradients):
        if slots[i] >= 0 and used_by[i] < 0:
            return OTHER
    counts[0], counts[1] = num_steps, num_channels
    return DONE
