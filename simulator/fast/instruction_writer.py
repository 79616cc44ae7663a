"""The instructions of a program written from columns of ops, as a loop over numbers.

The same loop runs over lists in plain Python and over NumPy arrays in machine code. `simulator.fast.own_work` inserts
the instructions for hand-over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pipesched.schedules.columns import Cells, MessageTable, op_cells
from pipesched.simulator.fast.loop_arrays import END, MARK, RECV, REDUCE, SEND, WAIT, WORK

SEND_F, SEND_B, RECV_F, POST_REDUCE, STEP, AVERAGE, UNSHARD, RESHARD, OVERLAPPED = (
    op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F, op_cells.REDUCE, op_cells.STEP, op_cells.AVERAGE,
    op_cells.UNSHARD, op_cells.RESHARD, op_cells.OVERLAPPED,
)  # fmt: skip

WRITTEN, MISSING, UNLIKE, ONE_SIDED, UNREDUCED, CROWDED = range(6)
"""Results of `write_instructions`: success, an op waits for a missing message, a Send meets a Recv of another message,
a Send or Recv has no partner, a replica does not reduce, or the arrays are too small for the instructions."""

KEYS = 14
"""Duration keys of a stage: two for each phase (without and with a look-ahead), then two each for Step and
Average (without and with a copy of the weights)."""
_STEP_KEY = 10
"""First key of Step and Average."""


class WriterRules(NamedTuple):
    """The rules of a compilation.

    Attributes:
        copies: Whether a Step keeps a copy of the weights that it replaces, by cell, or empty.
        num_microbatches: m.
        is_blocking: Whether Sends block.
        has_latency: Whether a blocking Send ends one latency before its message arrives.
    """

    copies: list[int]
    num_microbatches: int
    is_blocking: bool
    has_latency: bool


class WrittenProgram(NamedTuple):
    """The columns of a Program, to be written.

    Attributes:
        counts: Numbers of instructions, transfers, reductions, durations, channels and distinct messages, to be written
            in the end.
        begins: R + 1 numbers: where the instructions of each rank begin, and the end.
        kinds: Kind, by instruction.
        targets: Transfer or reduction that is posted or waited for, by instruction; -1 less a reduction's number until
            all transfers are known.
        takes: Duration, by instruction.
        cells: First cell of a duration, or -1 less the channel of a latency, by duration.
        pieces: Piece of an Overlap, else 0; 8 more if a Step copies; by duration.
        channel_of: Channel, by transfer.
        following: Next transfer of the same channel or -1, by transfer.
        sizes: Index into `size_cells`, by transfer.
        size_cells: A cell that posts a message, for each distinct message without its micro-batch.
        senders: Rank that sends, by channel.
        receivers: Rank that receives, by channel.
        reduced: Stage, by reduction.
    """

    counts: list[int]
    begins: list[int]
    kinds: list[int]
    targets: list[int]
    takes: list[int]
    cells: list[int]
    pieces: list[int]
    channel_of: list[int]
    following: list[int]
    sizes: list[int]
    size_cells: list[int]
    senders: list[int]
    receivers: list[int]
    reduced: list[int]


class KnownDurations(NamedTuple):
    """The durations of the ops that a rank has so far.

    Attributes:
        numbers: Duration, by stage and key.
        ranks: The rank that the duration is of, by stage and key; -1 at first.
        pairs: Three numbers per Overlap: the keys of its two ops, and the first of its three durations.
        latencies: Duration of a latency, by channel; -1 at first.
    """

    numbers: list[int]
    ranks: list[int]
    pairs: list[int]
    latencies: list[int]


class KnownTransfers(NamedTuple):
    """The channels and their transfers so far; all columns but `messages` are -1 at first.

    Attributes:
        messages: Message number, by transfer.
        size_of: Index of a message without its micro-batch, by row of the table.
        first_channels: First channel, by sender.
        next_channels: Next channel of the same sender, by channel.
        sent: Last transfer whose sender's side is posted, by channel.
        received: Last transfer whose receiver's side is posted, by channel.
        firsts: First transfer, by channel.
        lasts: Last transfer, by channel.
        there: Last rank that has a message, by message.
        arrived: Transfer that brings it there, or -1 if it is made there; by message.
    """

    messages: list[int]
    size_of: list[int]
    first_channels: list[int]
    next_channels: list[int]
    sent: list[int]
    received: list[int]
    firsts: list[int]
    lasts: list[int]
    there: list[int]
    arrived: list[int]


class KnownReductions(NamedTuple):
    """The reductions so far; all columns but `num_posts` are -1 at first.

    Attributes:
        following: Next reduction of the same stage, by reduction.
        num_posts: Number of ranks that post it, by reduction; zeros at first.
        firsts: First reduction, by stage.
        lasts: Last reduction that the rank has posted, by stage.
        open_of: Reduction that the rank's next Step waits for, by stage.
        open_ranks: The rank of the last two, by stage.
    """

    following: list[int]
    num_posts: list[int]
    firsts: list[int]
    lasts: list[int]
    open_of: list[int]
    open_ranks: list[int]


def closed(program: WrittenProgram, transfers: KnownTransfers, reductions: KnownReductions) -> int:
    """Check that all posts meet, and number reductions behind transfers; return `WRITTEN` or the kind of error."""
    counts = program.counts
    num_instructions, num_transfers, num_reductions, num_channels = counts[0], counts[1], counts[2], counts[4]
    for channel in range(num_channels):
        last = transfers.lasts[channel]
        if transfers.sent[channel] != last or transfers.received[channel] != last:
            return ONE_SIDED
    for reduction in range(num_reductions):
        if reductions.num_posts[reduction] != reductions.num_posts[reductions.firsts[program.reduced[reduction]]]:
            return UNREDUCED
    if num_reductions:
        for i in range(num_instructions):
            if program.targets[i] < 0:
                program.targets[i] = num_transfers - 1 - program.targets[i]
    return WRITTEN


def write_instructions(  # noqa: C901 -- one loop: calls with arrays cost machine code more than the work
    cells: Cells, table: MessageTable, rules: WriterRules, program: WrittenProgram, durations: KnownDurations,
    transfers: KnownTransfers, reductions: KnownReductions,
) -> int:  # fmt: skip
    """Write the instructions of all ranks.

    Args:
        cells: The lists, lowered.
        table: Messages of the computations.
        rules: Rules of Sends and Steps.
        program: The program, to be written.
        durations: Known durations.
        transfers: Known transfers.
        reductions: Known reductions.

    Returns:
        `WRITTEN`, or the kind of error.
    """
    begins, codes, stages, microbatches, others, lookaheads = cells
    owns, foreign, mades, _ = table
    copies, num_microbatches, is_blocking, has_latency = rules
    counts, begun, kinds, targets, takes, first_cells, pieces = program[:7]
    channel_of, following, sizes, size_cells, senders, receivers, reduced = program[7:]
    work_of, work_ranks, pairs, latency_of = durations
    messages, size_of, first_channels, next_channels, sent, received, firsts, lasts, there, arrived = transfers
    next_reductions, num_posts, first_reductions, last_reductions, open_of, open_ranks = reductions
    num_stages, room, num_pairs = len(size_of) // 2, len(kinds), 0
    end, num_transfers, num_reductions, num_durations, num_channels, num_sizes = 0, 0, 0, 1, 0, 0
    for rank in range(len(begins) - 1):
        begun[rank] = end
        first_pair = num_pairs
        i, last_cell = begins[rank], begins[rank + 1]
        while i < last_cell:
            if end + 8 > room:
                return CROWDED
            code, stage = codes[i], stages[i]
            last = i + code // OVERLAPPED
            if code >= OVERLAPPED or code < SEND_F:
                for part in range(i, last + 1):
                    row = codes[part] % OVERLAPPED * num_stages + stages[part]
                    for needed in (owns[row], foreign[row]):
                        if needed < 0:
                            continue
                        message = needed * num_microbatches + microbatches[part]
                        if there[message] != rank:
                            return MISSING
                        if arrived[message] >= 0:
                            kinds[end], targets[end] = WAIT, arrived[message]
                            end += 1
                key, key_before = -1, -1
                for part in range(i, last + 1):
                    code, stage = codes[part] % OVERLAPPED, stages[part]
                    made = mades[code * num_stages + stage]
                    if made >= 0:
                        message = made * num_microbatches + microbatches[part]
                        there[message], arrived[message] = rank, -1
                    looks_ahead = len(lookaheads) > 0 and lookaheads[part] > 0 and others[part] > 0
                    key, key_before = stage * KEYS + code * 2 + (1 if looks_ahead else 0), key
                if last == i:
                    if work_ranks[key] != rank:
                        work_ranks[key], work_of[key] = rank, num_durations
                        first_cells[num_durations], pieces[num_durations] = i, 0
                        num_durations += 1
                    kinds[end], takes[end] = WORK, work_of[key]
                    end += 1
                else:
                    pair = first_pair
                    while pair < num_pairs and (pairs[3 * pair] != key_before or pairs[3 * pair + 1] != key):
                        pair += 1
                    if pair == num_pairs:
                        pairs[3 * pair], pairs[3 * pair + 1], pairs[3 * pair + 2] = key_before, key, num_durations
                        num_pairs += 1
                        for piece in range(3):
                            first_cells[num_durations], pieces[num_durations] = i, piece
                            num_durations += 1
                    for piece in range(3):
                        kinds[end], takes[end] = WORK, pairs[3 * pair + 2] + piece
                        end += 1
            elif code < POST_REDUCE:  # a message
                is_send = code <= SEND_B
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
                row = stage if code in (SEND_F, RECV_F) else num_stages + stage
                message = row * num_microbatches + microbatches[i]
                if transfer < 0 and num_transfers == len(messages):
                    return ONE_SIDED
                if transfer < 0:
                    transfer = num_transfers
                    num_transfers += 1
                    if lasts[channel] >= 0:
                        following[lasts[channel]] = transfer
                    else:
                        firsts[channel] = transfer
                    if size_of[row] < 0:
                        size_of[row], size_cells[num_sizes] = num_sizes, i
                        num_sizes += 1
                    channel_of[transfer], following[transfer], lasts[channel] = channel, -1, transfer
                    messages[transfer], sizes[transfer] = message, size_of[row]
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
                                first_cells[num_durations], pieces[num_durations] = -1 - channel, 0
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
                key = stage * KEYS + _STEP_KEY + (0 if code == STEP else 2) + copy
                if work_ranks[key] != rank:
                    work_ranks[key], work_of[key] = rank, num_durations
                    first_cells[num_durations], pieces[num_durations] = i, 8 * copy
                    num_durations += 1
                kinds[end], takes[end] = WORK, work_of[key]
                end += 1
            elif code in (UNSHARD, RESHARD):
                kinds[end] = MARK
                end += 1
            else:
                raise ValueError("op code: got an unknown code; add it to `write_instructions`")
            i = last + 1
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
    counts[0], counts[1], counts[2] = end, num_transfers, num_reductions
    counts[3], counts[4], counts[5] = num_durations, num_channels, num_sizes
    return closed(program, transfers, reductions)


WRITER_PARTS = (closed,)
"""The functions that `write_instructions` calls, for numba."""


class ProgramShape(NamedTuple):
    """Where the times of ops are in a program.

    Attributes:
        begins: Where the instructions of each rank begin, and the end.
        kinds: Kind, by instruction.
        targets: Transfer or reduction, by instruction.
        num_posted: Number of transfers and reductions.
        is_blocking: Whether Sends block.
    """

    begins: list[int]
    kinds: list[int]
    targets: list[int]
    num_posted: int
    is_blocking: bool


def write_spans(
    cells: Cells, shape: ProgramShape, times: list[Any], posted: list[Any], starts: list[Any], ends: list[Any]
) -> int:
    """Write when the span of each op begins and ends.

    Args:
        cells: The lists, lowered.
        shape: The program.
        times: The times by number, or the numbers themselves.
        posted: When the rank comes to each op, to be written, like the next two.
        starts: When it starts.
        ends: When it is over.

    Returns:
        Number of ops.
    """
    begins, codes, _, _, _, _ = cells
    begun, kinds, targets, num_posted, is_blocking = shape
    op, num_instructions = 0, len(kinds)
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
