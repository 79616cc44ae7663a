"""Walk lists without communication once, as a loop over numbers: what each op waits for, and what is held until when.

    rank 0   F0 ─┐ F1 ..      step      row 1 = row 0 + F            F0 is over
                 │                      row 2 = row 1 + bytes / B    its message has left: later ones of the link wait
                 └> F0 ..               row 3 = row 2 + latency      it is there
    rank 1                              row 4 = max(row 0, row 3) + F

Where lists are lowered by us and nothing is shared, a Recv is always posted when its Send comes, so a message starts
as soon as it is made and its link is free; and all messages of a link start in the order in which they are made. So
times follow from the lists without their communication. A step gives the larger of two rows, and some seconds later;
rows are given away anew when nobody needs them. The walk does the steps of one case, and notes them where more come.

Message number stage * m + microbatch is an activation; a gradient's has all activations before it. As in
`schedules.lowering.recv_places`, a clock counts the cells of each rank that are surely over: so many are in front of a
message's Recv, from which on its buffer is held. Where links make a tree, what a rank knows of its neighbour is what
that has told it, and no clock is needed. What a rank has sent is let go when a message comes that its receiver has made
later, as in `schedules.semantics.acknowledgements`.
"""

from __future__ import annotations

from typing import Any

from pipesched.schedules import op_cells
from pipesched.simulator import differ

F, B, I, W, R, STEP = (  # noqa: E741
    op_cells.F, op_cells.B, op_cells.I, op_cells.W, op_cells.R, op_cells.STEP,
)  # fmt: skip
NUM_KINDS = 6
"""Durations of a stage: those of the five phases, by their codes, and of a Step."""

DONE, OTHER, FULL = range(3)
"""What `walk` says: all is found, the lists have something else in them or cannot end, or more rows are needed."""

MADE, SLOT, WAITER, RECV_AT, GONE_AT, NUMBER, TOLD, NEXT, MESSAGE = range(9)
"""Numbers of a message: the cell that makes it, its row among those of messages, the rank that waits for it, the cell
in front of which its Recv stands, each rank having a cell more before it than the ranks above, and the cell of its
sender at whose start it is let go of: -1 of each where there is none; how many went over its channel before, how many
messages of its receiver its maker had used, the next of its channel; and how many numbers these are."""

CHANNEL, SENT, GONE, HEAD, TAIL, USED, KNOWN, _, PAIR = range(9)
"""Numbers of a pair of ranks: one more than its channel; how many messages the first has sent the second, and how many
of them it has let go of; the first that is not, and the last that was sent; how many messages of the second the first
has used, and how many cells of it are over by what these say; and room for how many numbers these are."""


def begin_walk(  # noqa: C901 -- as `walk`
    begins: Any, codes: Any, stages: Any, microbatches: Any, num_stages: int, num_microbatches: int, is_repeated: bool,
    homes: Any, masks: Any, num_cells: Any,
) -> int:  # fmt: skip
    """Find the rank of each stage, and how many cells there are of each kind.

    Args:
        begins: R + 1 indices, and then columns of n cells, as `OpColumns` has them.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_stages: S.
        num_microbatches: m.
        is_repeated: Whether ops may come behind a Step of their stage, as those of the next batch do.
        homes: Of each micro-batch of each stage, to be written, as is all that follows: the rank of its F.
        masks: Of each the phases that are over, a bit each: none but Steps yet.
        num_cells: How many cells there are of phase or Step k of a stage: number k * S + stage.

    Returns:
        `DONE` or `OTHER`.
    """
    num_optimizer_steps = 0
    for i in range(num_stages * num_microbatches):
        homes[i] = -1
    for i in range(num_stages * num_microbatches):
        masks[i] = 0
    for i in range(NUM_KINDS * num_stages):
        num_cells[i] = 0
    for rank in range(len(begins) - 1):
        if begins[rank] == begins[rank + 1]:
            return OTHER
        for i in range(begins[rank], begins[rank + 1]):
            code, stage = codes[i], stages[i]
            if not (0 <= stage < num_stages and 0 <= microbatches[i] < num_microbatches):
                return OTHER
            if code <= R:
                if masks[stage * num_microbatches] and not is_repeated:
                    return OTHER  # it may read weights of before the Step
                if code == F:
                    if homes[stage * num_microbatches + microbatches[i]] >= 0:
                        return OTHER
                    homes[stage * num_microbatches + microbatches[i]] = rank
                num_cells[code * num_stages + stage] += 1
            elif code == STEP:
                masks[stage * num_microbatches] = 1 << STEP
                num_optimizer_steps += 1
                num_cells[(R + 1) * num_stages + stage] += 1
            else:
                return OTHER
    return DONE if num_optimizer_steps else OTHER


def walk(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    begins: Any, codes: Any, stages: Any, microbatches: Any, num_stages: int, num_microbatches: int, num_rows: int,
    has_bytes: bool, lasts_s: Any, homes: Any, masks: Any, counts: Any, messages: Any, pairs: Any, at: Any, ready: Any,
    now: Any, clocks: Any, kept: Any, free: Any, senders: Any, receivers: Any, left: Any, last_ways: Any,
    way_channels: Any, rows_s: Any, kept_s: Any, waits: Any, begun_s: Any, over_s: Any, dests: Any, firsts: Any,
    seconds: Any, takes: Any, cells: Any, keeps: Any, owners: Any,
) -> int:  # fmt: skip
    """Go through all lists once: find the times of a case, and note the steps if others are to come.

    Args:
        begins: As `begin_walk` takes it, as are the next five.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_stages: S.
        num_microbatches: m.
        num_rows: How many messages may be on their way at once.
        has_bytes: Whether it is asked what is held.
        lasts_s: Durations: of phase or Step k of a stage, k * S + stage; behind those, of activations and gradients
            of each stage, how long they keep their link, and the latency [s].
        homes: As `begin_walk` leaves it, as is the next.
        masks: Of each micro-batch of each stage the phases that are over.
        counts: 2 numbers, to be written, as is all that follows: steps and channels.
        messages: Numbers of messages, `MESSAGE` of each.
        pairs: Numbers of pairs of ranks, `PAIR` of each.
        at: Of each rank its next cell; in the end its last.
        ready: The ranks that can go on.
        now: Of each rank the row of the end of its last cell.
        clocks: R rows of R numbers, one behind the other: how many cells of each rank are surely over, for each rank.
        kept: Clocks of messages on their way, likewise.
        free: The rows of messages that are free.
        senders: Of each channel the rank that sends.
        receivers: The rank that receives.
        left: Of each channel the row of when it is free.
        last_ways: Of each channel the last message's number among durations.
        way_channels: Of activations and gradients of each stage the channel.
        rows_s: Rows [s].
        kept_s: When ranks and channels begin [s].
        waits: Of each cell whether its rank waits in front of it, by more than roundings;
            nothing where that is not asked for.
        begun_s: When each cell begins; nothing where that is not asked for [s].
        over_s: When it is over, likewise [s].
        dests: Of each step the row that it gives; nothing where steps are not asked for, as are the next.
        firsts: The first that it needs.
        seconds: The second.
        takes: The number of its duration.
        cells: The cell whose work it is; -1 of messages.
        keeps: What its beginning is asked for: the rank of which it is the first, or R + the channel; -1.
        owners: The rank whose work or message it is.

    Returns:
        `DONE`, `OTHER` or `FULL`.
    """
    num_ranks, gradients = len(begins) - 1, num_stages * num_microbatches
    has_waits, has_cells, has_steps = len(waits) > 0, len(begun_s) > 0, len(dests) > 0
    first_way, first_row = NUM_KINDS * num_stages, 1 + 2 * num_ranks
    first_left, num_steps, num_channels = first_row + num_rows, 0, 0
    for i in range(2 * gradients * MESSAGE):
        messages[i] = -1
    for i in range(num_ranks * num_ranks * PAIR):
        pairs[i] = 0
    for i in range(2 * num_stages):
        way_channels[i] = -1
    for i in range(num_rows):
        free[i] = i
    for i in range(num_ranks * num_ranks):
        clocks[i] = 0
    for rank in range(num_ranks):
        at[rank], ready[rank], now[rank] = begins[rank], rank, 0
    num_edges = 0
    for stage in range(1, num_stages):
        home, other = homes[(stage - 1) * num_microbatches], homes[stage * num_microbatches]
        if home != other and pairs[(home * num_ranks + other) * PAIR + KNOWN] == 0:
            pairs[(home * num_ranks + other) * PAIR + KNOWN] = pairs[(other * num_ranks + home) * PAIR + KNOWN] = 1
            num_edges += 1
    for i in range(num_ranks * num_ranks):
        pairs[i * PAIR + KNOWN] = 0
    has_clocks = has_bytes and num_edges >= num_ranks
    num_free, num_ready, num_under_way, rows_s[0] = num_rows, num_ranks, 0, 0.0
    while num_ready:
        num_ready -= 1
        rank = ready[num_ready]
        i, clock, row = at[rank], rank * num_ranks, now[rank]
        while i < begins[rank + 1]:
            code, stage = codes[i], stages[i]
            own = stage * num_microbatches + microbatches[i]
            used, second = -1, 0
            if code == F:
                if stage:
                    used = own - num_microbatches
            elif code <= R:
                if homes[own] != rank or masks[own] & 1 == 0 or (code == W and masks[own] & 1 << I == 0):
                    return OTHER
                if code <= I and stage + 1 < num_stages:
                    used = gradients + own + num_microbatches
            if code <= R and masks[own] & 1 << code:
                return OTHER
            if used >= 0:
                message = used * MESSAGE
                if messages[message + MADE] < 0:
                    messages[message + WAITER] = rank
                    break
                slot = messages[message + SLOT]
                if slot >= 0:  # it comes from another rank
                    second = first_row + slot
                    if has_bytes:
                        peer = homes[used - gradients if used >= gradients else used]
                        pair = (rank * num_ranks + peer) * PAIR
                        if has_clocks:
                            for other in range(num_ranks):
                                known, before = kept[slot * num_ranks + other], clocks[clock + other]
                                clocks[clock + other] = known if known > before else before
                        elif messages[message + MADE] + 1 - begins[peer] > pairs[pair + KNOWN]:
                            pairs[pair + KNOWN] = messages[message + MADE] + 1 - begins[peer]
                        while pairs[pair + GONE] < messages[message + TOLD]:
                            head = pairs[pair + HEAD] * MESSAGE
                            messages[head + GONE_AT] = i
                            pairs[pair + HEAD] = messages[head + NEXT]
                            pairs[pair + GONE] += 1
                        if messages[message + NUMBER] >= pairs[pair + USED]:
                            pairs[pair + USED] = messages[message + NUMBER] + 1
                    free[num_free] = slot
                    num_free += 1
                    num_under_way -= 1
            if code <= R:
                masks[own] |= 1 << code
            first, take = row, (code if code <= R else R + 1) * num_stages + stage
            first_s, second_s = rows_s[first], rows_s[second]
            start_s = first_s if first_s > second_s else second_s
            row = 1 + 2 * rank
            row += 1 if first == row else 0
            rows_s[row] = start_s + lasts_s[take]
            if i == begins[rank]:
                kept_s[rank] = start_s
            if has_waits:
                waits[i] = differ(first_s, second_s)
            if has_cells:
                begun_s[i], over_s[i] = start_s, rows_s[row]
            if has_steps:
                dests[num_steps], firsts[num_steps], seconds[num_steps] = row, first, second
                takes[num_steps], cells[num_steps] = take, i
                keeps[num_steps], owners[num_steps] = rank if i == begins[rank] else -1, rank
                num_steps += 1
            i += 1
            if has_clocks:
                clocks[clock + rank] = i - begins[rank]
            if code > I:
                continue
            made, receiver = (own, stage + 1) if code == F else (gradients + own, stage - 1)
            message = made * MESSAGE
            if messages[message + MADE] >= 0:
                return OTHER
            messages[message + MADE] = i - 1
            if messages[message + WAITER] >= 0:
                ready[num_ready] = messages[message + WAITER]
                num_ready += 1
            if receiver < 0 or receiver == num_stages:
                continue
            peer = homes[receiver * num_microbatches + microbatches[i - 1]]
            if peer < 0:
                return OTHER
            if peer == rank:
                continue
            pair, way = (rank * num_ranks + peer) * PAIR, stage if code == F else num_stages + stage
            channel = pairs[pair + CHANNEL] - 1
            keep = -1
            if channel < 0:
                channel = num_channels
                if channel == len(senders):
                    return OTHER
                num_channels += 1
                senders[channel], receivers[channel], left[channel] = rank, peer, 0
                keep = num_ranks + channel
                pairs[pair + CHANNEL] = num_channels
            if way_channels[way] < 0:
                way_channels[way] = channel
            elif way_channels[way] != channel:
                return OTHER
            if num_free == 0:
                return FULL
            num_free -= 1
            num_under_way += 1
            slot = free[num_free]
            messages[message + SLOT] = slot
            if has_bytes:
                if has_clocks:
                    messages[message + RECV_AT] = begins[peer] + clocks[clock + peer] + peer
                    for other in range(num_ranks):
                        kept[slot * num_ranks + other] = clocks[clock + other]
                else:
                    messages[message + RECV_AT] = begins[peer] + pairs[pair + KNOWN] + peer
                messages[message + TOLD], messages[message + NUMBER] = pairs[pair + USED], pairs[pair + SENT]
                if pairs[pair + SENT] > pairs[pair + GONE]:
                    messages[pairs[pair + TAIL] * MESSAGE + NEXT] = made
                else:
                    pairs[pair + HEAD] = made
                pairs[pair + TAIL] = made
                pairs[pair + SENT] += 1
            link, before, take = first_left + 2 * channel, left[channel], first_way + 2 * way
            link += 1 if before == link else 0
            first_s, second_s = rows_s[row], rows_s[before]
            start_s = first_s if first_s > second_s else second_s
            rows_s[link] = start_s + lasts_s[take]
            rows_s[first_row + slot] = rows_s[link] + lasts_s[take + 1]
            left[channel], last_ways[channel] = link, take
            if keep >= 0:
                kept_s[keep] = start_s
            if has_steps:
                dests[num_steps], firsts[num_steps], seconds[num_steps] = link, row, before
                takes[num_steps], cells[num_steps], keeps[num_steps] = take, -1, keep
                num_steps += 1
                dests[num_steps], firsts[num_steps], seconds[num_steps] = first_row + slot, link, 0
                takes[num_steps], cells[num_steps], keeps[num_steps] = take + 1, -1, -1
                num_steps += 1
        at[rank], now[rank] = i, row
    for rank in range(num_ranks):
        if at[rank] < begins[rank + 1]:
            return OTHER
    counts[0], counts[1] = num_steps, num_channels
    return OTHER if num_under_way else DONE
