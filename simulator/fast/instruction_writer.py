"""The instructions of a program written from columns of ops, as a loop over numbers.

It is the same for lists and for NumPy's arrays, which machine code takes. Lists whose ops are given seconds, or whose
ranks take time for handing over, are compiled op by op (`simulator.fast.list_compiler`).
"""

from __future__ import annotations

from typing import Any

from pipesched.schedules import op_cells
from pipesched.simulator.fast.loop_arrays import END, MARK, RECV, REDUCE, SEND, WAIT, WORK

F, I, W, R, SEND_F, SEND_B, RECV_F = (  # noqa: E741
    op_cells.F, op_cells.I, op_cells.W, op_cells.R, op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F,
)  # fmt: skip
POST_REDUCE, STEP, AVERAGE, OVERLAPPED = op_cells.REDUCE, op_cells.STEP, op_cells.AVERAGE, op_cells.OVERLAPPED

WRITTEN, MISSING, UNLIKE, ONE_SIDED, UNREDUCED, CROWDED = range(6)
"""Results of `write_instructions`: success, an op waits for a missing message, a Send meets a Recv of another message,
a Send or Recv has no partner, a replica does not reduce, or the arrays are too small for the instructions."""


def write_instructions(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    begins: Any, codes: Any, stages: Any, microbatches: Any, others: Any, lookaheads: Any, copies: Any,
    num_stages: int, num_microbatches: int, is_blocking: bool, has_latency: bool,
    counts: Any, begun: Any, kinds: Any, targets: Any, takes: Any, durations: Any, pieces: Any,
    channel_of: Any, following: Any, sizes: Any, messages: Any, size_cells: Any, size_of: Any,
    senders: Any, receivers: Any, first_channels: Any, next_channels: Any, latency_of: Any,
    sent: Any, received: Any, firsts: Any, lasts: Any, there: Any, arrived: Any,
    work_of: Any, work_ranks: Any, pairs: Any, reduced: Any, next_reductions: Any, num_posts: Any,
    first_reductions: Any, last_reductions: Any, open_of: Any, open_ranks: Any,
) -> int:  # fmt: skip
    """Write the instructions of all ranks.

    Args:
        begins: R + 1 indices, and then columns of n cells, as in `OpColumns`: lowered.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        others: n peers and versions, or empty.
        lookaheads: n look-aheads, or empty.
        copies: n flags whether a Step keeps a copy of the weights that it replaces, or empty.
        num_stages: Number of stages.
        num_microbatches: m.
        is_blocking: Whether Sends block.
        has_latency: Whether a blocking Send is over by a latency before its message is there.
        counts: 5 numbers, to be written: instructions, transfers, reductions, durations, channels.
        begun: R + 1 numbers, to be written: where the instructions of each rank begin, and the end.
        kinds: Kinds of instructions, to be written, like the next two.
        targets: Transfer or reduction that they post or wait for.
        takes: Their durations.
        durations: First cell of each duration, to be written; for a latency its channel, as a negative number.
        pieces: Piece of each duration, to be written: 0, or the piece of an Overlap; 8 more if a Step copies.
        channel_of: Channel of each transfer, to be written, like the next three.
        following: The next transfer of the channel.
        sizes: Index of the message without its micro-batch.
        messages: Index of the message.
        size_cells: A cell that posts each distinct message, to be written.
        size_of: 2 numbers per stage, -1 at first.
        senders: Sender of each channel, to be written, like the next.
        receivers: The rank that receives.
        first_channels: First channel of each sender, -1 at first.
        next_channels: Next channel of the same sender, by channel, -1 at first.
        latency_of: Duration of each channel's latency, -1 at first.
        sent: Last transfer of each channel whose sender's side is posted, -1 at first.
        received: The same for the receiver's side.
        firsts: First transfer of each channel, -1 at first.
        lasts: Last transfer of each channel, -1 at first.
        there: Last rank that has a message, by message of a stage, -1 at first.
        arrived: Transfer that brings it, -1 if it is made there.
        work_of: 20 numbers per stage: the duration of each phase, with a copy or a look-ahead or without.
        work_ranks: The rank of these durations, by stage, -1 at first.
        pairs: Three numbers per Overlap of a rank, with room for one per duration: the keys of its two ops, and the
            first of its three durations.
        reduced: Stage of each reduction, to be written.
        next_reductions: Next reduction of the same stage, -1 at first.
        num_posts: Number of ranks that post each reduction, 0 at first.
        first_reductions: First reduction of each stage, -1 at first.
        last_reductions: Last reduction of each stage that the rank has posted.
        open_of: Reduction that the next Step of each stage waits for, -1 without one.
        open_ranks: The rank of the last two, by stage, -1 at first.

    Returns:
        `WRITTEN`, or the kind of error.
    """
    gradients, room, num_pairs = num_stages * num_microbatches, len(kinds), 0
    end, num_transfers, num_reductions, num_durations, num_channels, num_sizes = 0, 0, 0, 1, 0, 0
    for rank in range(len(begins) - 1):
        begun[rank] = end
        first_pair = num_pairs
        i, last_cell = begins[rank], begins[rank + 1]
        while i < last_cell:
            if end + 8 > room:
                return CROWDED
            code, stage = codes[i], stages[i]
            if code >= OVERLAPPED or code < SEND_F:
                second = i + 1 if code >= OVERLAPPED else i
                for part in range(i, second + 1):
                    code, stage = codes[part] % OVERLAPPED, stages[part]
                    own = stage * num_microbatches + microbatches[part]
                    for turn in range(2):
                        message = -1
                        if turn == 0:
                            if code == F:
                                message = own - num_microbatches
                            elif code == W:
                                message = gradients + own
                            else:
                                message = own
                        elif code != F and code <= I and stage + 1 < num_stages:
                            message = gradients + own + num_microbatches
                        if message < 0:
                            continue
                        if there[message] != rank:
                            return MISSING
                        if arrived[message] >= 0:
                            kinds[end], targets[end] = WAIT, arrived[message]
                            end += 1
                key, key_behind = -1, -1
                for part in range(i, second + 1):
                    code, stage = codes[part] % OVERLAPPED, stages[part]
                    if code <= I:
                        message = (0 if code == F else gradients) + stage * num_microbatches + microbatches[part]
                        there[message], arrived[message] = rank, -1
                    looks_ahead = len(lookaheads) > 0 and lookaheads[part] > 0 and others[part] > 0
                    key, key_behind = stage * 20 + code * 2 + (1 if looks_ahead else 0), key
                if second == i:
                    if work_ranks[key] != rank:
                        work_ranks[key], work_of[key] = rank, num_durations
                        durations[num_durations], pieces[num_durations] = i, 0
                        num_durations += 1
                    kinds[end], takes[end] = WORK, work_of[key]
                    end += 1
                else:
                    pair = first_pair
                    while pair < num_pairs and (pairs[3 * pair] != key_behind or pairs[3 * pair + 1] != key):
                        pair += 1
                    if pair == num_pairs:
                        pairs[3 * pair], pairs[3 * pair + 1], pairs[3 * pair + 2] = key_behind, key, num_durations
                        num_pairs += 1
                        for piece in range(3):
                            durations[num_durations], pieces[num_durations] = i, piece
                            num_durations += 1
                    for piece in range(3):
                        kinds[end], takes[end] = WORK, pairs[3 * pair + 2] + piece
                        end += 1
                i = second + 1
                continue
            if code < POST_REDUCE:  # a message
                is_send = code <= SEND_B
                is_activation = code in (SEND_F, RECV_F)
                sender, receiver = (rank, others[i]) if is_send else (others[i], rank)
                channel = first_channels[sender]
                while channel >= 0 and receivers[channel] != receiver:
                    channel = next_channels[channel]
                if channel < 0:
                    channel = num_channels
                    senders[channel], receivers[channel] = sender, receiver
                    next_channels[channel], first_channels[sender] = first_channels[sender], channel
                    num_channels += 1
                before = sent[channel] if is_send else received[channel]
                transfer = following[before] if before >= 0 else firsts[channel]
                payload = 0 if is_activation else 1
                message = payload * gradients + stage * num_microbatches + microbatches[i]
                if transfer < 0 and num_transfers == len(messages):
                    return ONE_SIDED
                if transfer < 0:
                    transfer = num_transfers
                    num_transfers += 1
                    if lasts[channel] >= 0:
                        following[lasts[channel]] = transfer
                    else:
                        firsts[channel] = transfer
                    size = payload * num_stages + stage
                    if size_of[size] < 0:
                        size_of[size], size_cells[num_sizes] = num_sizes, i
                        num_sizes += 1
                    channel_of[transfer], following[transfer], lasts[channel] = channel, -1, transfer
                    messages[transfer], sizes[transfer] = message, size_of[size]
                elif messages[transfer] != message:
                    return UNLIKE
                targets[end] = transfer
                if is_send:
                    sent[channel], kinds[end] = transfer, SEND
                    if is_blocking:
                        end += 1
                        kinds[end], targets[end] = WAIT, transfer
                        if has_latency:
                            if latency_of[channel] < 0:
                                durations[num_durations], pieces[num_durations] = -1 - channel, 0
                                latency_of[channel] = num_durations
                                num_durations += 1
                            takes[end] = latency_of[channel]
                else:
                    received[channel], kinds[end] = transfer, RECV
                    if there[message] != rank or arrived[message] >= 0:
                        there[message], arrived[message] = rank, transfer
                end += 1
            elif code == POST_REDUCE:
                if open_ranks[stage] != rank:
                    open_ranks[stage], open_of[stage], last_reductions[stage] = rank, -1, -1
                before = last_reductions[stage]
                reduction = next_reductions[before] if before >= 0 else first_reductions[stage]
                if reduction < 0:
                    reduction = num_reductions
                    num_reductions += 1
                    reduced[reduction] = stage
                    if before >= 0:
                        next_reductions[before] = reduction
                    else:
                        first_reductions[stage] = reduction
                num_posts[reduction] += 1
                last_reductions[stage], open_of[stage] = reduction, reduction
                kinds[end], targets[end] = REDUCE, -1 - reduction
                end += 1
            elif code in (STEP, AVERAGE):
                if code == STEP and open_ranks[stage] == rank and open_of[stage] >= 0:
                    kinds[end], targets[end] = WAIT, -1 - open_of[stage]
                    open_of[stage] = -1
                    end += 1
                copy = 1 if len(copies) and copies[i] else 0
                key = stage * 20 + 10 + (0 if code == STEP else 2) + copy
                if work_ranks[key] != rank:
                    work_ranks[key], work_of[key] = rank, num_durations
                    durations[num_durations], pieces[num_durations] = i, 8 * copy
                    num_durations += 1
                kinds[end], takes[end] = WORK, work_of[key]
                end += 1
            else:
                kinds[end] = MARK
                end += 1
            i += 1
        for cell in range(begins[rank], last_cell):  # unfinished reductions
            if end + 2 > room:
                return CROWDED
            if codes[cell] == POST_REDUCE and open_of[stages[cell]] >= 0:
                kinds[end], targets[end] = WAIT, -1 - open_of[stages[cell]]
                open_of[stages[cell]] = -1
                end += 1
        kinds[end] = END
        end += 1
    begun[len(begins) - 1] = end
    for channel in range(num_channels):
        if sent[channel] != lasts[channel] or received[channel] != lasts[channel]:
            return ONE_SIDED
    for reduction in range(num_reductions):
        if num_posts[reduction] != num_posts[first_reductions[reduced[reduction]]]:
            return UNREDUCED
    if num_reductions:
        for i in range(end):
            if targets[i] < 0:
                targets[i] = num_transfers - 1 - targets[i]
    counts[0], counts[1], counts[2], counts[3], counts[4] = (
        end,
        num_transfers,
        num_reductions,
        num_durations,
        num_channels,
    )
    return WRITTEN


def write_spans(
    begins: Any, codes: Any, begun: Any, kinds: Any, targets: Any, is_blocking: bool, num_instructions: int,
    num_posted: int, times: Any, posted: Any, starts: Any, ends: Any,
) -> int:  # fmt: skip
    """Write when the span of each op begins and ends.

    Args:
        begins: As `write_instructions` takes it, as is the next.
        codes: n codes.
        begun: As `write_instructions` writes it, as are the next two.
        kinds: Kinds of instructions.
        targets: Transfer or reduction that they post or wait for.
        is_blocking: Whether Sends block.
        num_instructions: Number of instructions.
        num_posted: Number of transfers and reductions.
        times: The times by number, or the numbers themselves.
        posted: When the rank comes to each op, to be written, like the next two.
        starts: When it starts.
        ends: When it is over.

    Returns:
        Number of ops.
    """
    op = 0
    for rank in range(len(begins) - 1):
        at, is_first = begun[rank], True
        for i in range(begins[rank], begins[rank + 1]):
            if not is_first:  # the second part of an Overlap
                is_first = True
                continue
            code = codes[i]
            posted[op] = times[at]
            if SEND_F <= code <= POST_REDUCE:
                starts[op] = times[num_instructions + targets[at]]
                ends[op] = times[num_instructions + num_posted + targets[at]]
                at += 2 if is_blocking and code <= SEND_B else 1
            else:
                while kinds[at] == WAIT:
                    at += 1
                starts[op] = times[at]
                is_first = code < OVERLAPPED
                at += 1 if is_first else 3
                ends[op] = times[at]
            op += 1
    return op
