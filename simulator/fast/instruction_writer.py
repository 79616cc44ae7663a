"""The instructions of a program written from columns of ops, as loops over numbers.

The same loop runs over lists in plain Python and over NumPy arrays in machine code. `simulator.fast.own_work` inserts
the instructions for hand-over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pipesched.schedules.columns import Cells, MessageTable, op_cells
from pipesched.simulator.fast.loop_arrays import END, MARK, RECV, REDUCE, SEND, WAIT, WORK

SEND_F, SEND_B, RECV_F, POST_REDUCE, STEP, UNSHARD, RESHARD, OVERLAPPED = (
    op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F, op_cells.REDUCE, op_cells.STEP, op_cells.UNSHARD,
    op_cells.RESHARD, op_cells.OVERLAPPED,
)  # fmt: skip

WRITTEN, MISSING, UNLIKE, ONE_SIDED, UNREDUCED, CROWDED = range(6)
"""Results of `write_instructions`: success, an op waits for a missing message, a Send meets a Recv of another message,
a Send or Recv has no partner, a replica does not reduce, or the arrays are too small for the instructions."""

_STEP_KEY = 2 * SEND_F
KEYS = _STEP_KEY + 2 * (RESHARD - STEP)
"""Duration keys of a stage: two for each computation (without and with a look-ahead), then from `_STEP_KEY` on two for
each op on its weights (without and with a copy of the weights)."""


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
        begins: R + 1 numbers: the index of each rank's first instruction, then the number of instructions.
        kinds: Kind, by instruction.
        targets: Transfer or reduction that is posted or waited for, by instruction.
        takes: Duration, by instruction.
        cells: First cell of a duration, or -1 less the channel of a latency, by duration.
        pieces: Piece of an Overlap, else 0; 8 more if a Step copies; by duration.
        channel_of: Channel, by transfer.
        following: Next transfer of the same channel or -1, by transfer.
        sizes: Index into `size_cells`, by transfer.
        size_cells: A cell that posts a message, for each distinct message without its micro-batch.
        senders: Rank that sends, by channel.
        receivers: Rank that receives, by channel.
        reduced: Number of the group, by reduction: stage + content number x number of stages. For an Unshard, the
            content number is the number of contents plus the rank.
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
        numbers: Number of a duration, by stage and key.
        ranks: Rank whose duration it is, by stage and key; -1 at first.
        pairs: Three numbers per Overlap of the rank: the keys of its two ops, and the first of its three durations.
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
    """

    messages: list[int]
    size_of: list[int]
    first_channels: list[int]
    next_channels: list[int]
    sent: list[int]
    received: list[int]
    firsts: list[int]
    lasts: list[int]


class KnownReductions(NamedTuple):
    """The reductions so far; all columns but `num_posts` are -1 at first.

    Attributes:
        following: Next reduction of the same stage, by reduction.
        num_posts: Number of ranks that post it, by reduction; zeros at first.
        firsts: First reduction, by number of the group.
        lasts: Last reduction that the rank has posted, by content and stage.
        open_of: Reduction that the rank's next Step waits for, by stage.
        open_ranks: Rank to which `lasts` and `open_of` belong, by stage.
        gathers: Cell of the Unshard that the next computation waits for, by stage.
    """

    following: list[int]
    num_posts: list[int]
    firsts: list[int]
    lasts: list[int]
    open_of: list[int]
    open_ranks: list[int]
    gathers: list[int]


class HeldMessages(NamedTuple):
    """The messages that ranks have so far; -1 at first.

    Attributes:
        there: Last rank that has a message, by message.
        arrived: By message, the transfer to that rank; -1 if the rank makes the message, or has waited for it before.
    """

    there: list[int]
    arrived: list[int]


class CellNumbers(NamedTuple):
    """The numbers of each cell in the program.

    Attributes:
        own: Transfer of a Send or Recv, reduction of a Reduce or Unshard, duration of an op that works, or the first of
            the three durations of an Overlap.
        awaited: Reduction that a Step or a computation waits for, or a Reduce before it is posted; -1 at first. Empty
            without reductions.
        at_end: For a Reduce, the reduction that the end of the list waits for; -1 at first. Empty without reductions.
    """

    own: list[int]
    awaited: list[int]
    at_end: list[int]


def number_transfers(  # noqa: C901 -- one loop: calls with arrays cost machine code more than the work
    cells: Cells, num_microbatches: int, program: WrittenProgram, known: KnownTransfers, posted: list[int]
) -> int:
    """Give the k-th Send and the k-th Recv of each channel one number; return `WRITTEN` or the kind of error."""
    begins, codes, stages, microbatches, others, _ = cells
    counts, (channel_of, following, sizes, size_cells, senders, receivers, _) = program.counts, program[7:]
    messages, size_of, first_channels, next_channels, sent, received, firsts, lasts = known
    num_transfers, num_channels, num_sizes = 0, 0, 0
    for rank in range(len(begins) - 1):
        for i in range(begins[rank], begins[rank + 1]):
            code = codes[i]
            if code < SEND_F or code >= POST_REDUCE:
                continue
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
            row = stages[i] if code in (SEND_F, RECV_F) else len(size_of) // 2 + stages[i]
            message = row * num_microbatches + microbatches[i]
            if transfer < 0:
                if num_transfers == len(messages):
                    return ONE_SIDED
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
            posted[i] = transfer
            if is_send:
                sent[channel] = transfer
            else:
                received[channel] = transfer
    counts[1], counts[4], counts[5] = num_transfers, num_channels, num_sizes
    for channel in range(num_channels):
        if sent[channel] != lasts[channel] or received[channel] != lasts[channel]:
            return ONE_SIDED
    return WRITTEN


def number_reductions(  # noqa: C901 -- as above
    cells: Cells, counts: list[int], reduced: list[int], known: KnownReductions, numbers: CellNumbers
) -> int:
    """Give the k-th Reduces of each group one number, behind the transfers; return `WRITTEN` or the kind of error.

    An Unshard is a reduction of one rank. The next computation of its stage waits for it.
    """
    begins, codes, stages, _, others, _ = cells
    following, num_posts, firsts, lasts, open_of, open_ranks, gathers = known
    posted, awaited, at_end = numbers
    num_transfers, num_reductions, num_stages = counts[1], 0, len(open_of)
    for rank in range(len(begins) - 1):
        is_open = False
        for i in range(begins[rank], begins[rank + 1]):
            stage = stages[i]
            if codes[i] == POST_REDUCE:
                if open_ranks[stage] != rank:
                    open_ranks[stage], open_of[stage] = rank, -1
                    for sums in range(stage, len(lasts), num_stages):
                        lasts[sums] = -1
                content = others[i] if len(others) > 0 else 0
                sums = content * num_stages + stage
                group = stage if content == 0 else content * num_stages
                before = lasts[sums]
                reduction = following[before] if before >= 0 else firsts[group]
                if reduction < 0:
                    reduction = num_reductions
                    num_reductions += 1
                    reduced[reduction] = group
                    if before >= 0:
                        following[before] = reduction
                    else:
                        firsts[group] = reduction
                if content > 0 and open_of[stage] >= 0:
                    awaited[i] = num_transfers + open_of[stage]
                num_posts[reduction] += 1
                lasts[sums], open_of[stage] = reduction, reduction
                posted[i], is_open = num_transfers + reduction, True
            elif codes[i] == STEP and open_ranks[stage] == rank and open_of[stage] >= 0:
                awaited[i], open_of[stage] = num_transfers + open_of[stage], -1
            elif codes[i] == UNSHARD:
                posted[i], gathers[stage] = num_transfers + num_reductions, i
                reduced[num_reductions], num_posts[num_reductions] = len(lasts) + rank * num_stages + stage, 1
                num_reductions += 1
            elif (codes[i] < SEND_F or codes[i] >= OVERLAPPED) and gathers[stage] >= begins[rank]:
                awaited[i], gathers[stage] = posted[gathers[stage]], -1
        if is_open:
            for i in range(begins[rank], begins[rank + 1]):  # unfinished reductions
                if codes[i] == POST_REDUCE and open_of[stages[i]] >= 0:
                    at_end[i], open_of[stages[i]] = num_transfers + open_of[stages[i]], -1
    counts[2] = num_reductions
    for reduction in range(num_reductions):
        if reduced[reduction] < len(lasts) and num_posts[reduction] != num_posts[firsts[reduced[reduction]]]:
            return UNREDUCED
    return WRITTEN


def number_durations(  # noqa: C901 -- as above
    cells: Cells, rules: WriterRules, program: WrittenProgram, known: KnownDurations, own: list[int], rank: int
) -> None:
    """Give each different duration of the works of a rank, and the latency of each of its channels, a number."""
    begins, codes, stages, _, others, lookaheads = cells
    numbers_of, ranks, pairs, latencies = known
    first_cells, pieces, channel_of = program.cells, program.pieces, program.channel_of
    copies, num_durations, num_pairs, key_before = rules.copies, program.counts[3], 0, -1
    has_latency, has_lookaheads = rules.is_blocking and rules.has_latency, len(lookaheads) > 0
    for i in range(begins[rank], begins[rank + 1]):
        code, piece = codes[i], 0
        if SEND_F <= code <= POST_REDUCE:
            if has_latency and code <= SEND_B and latencies[channel_of[own[i]]] < 0:
                first_cells[num_durations], pieces[num_durations] = -1 - channel_of[own[i]], 0
                latencies[channel_of[own[i]]] = num_durations
                num_durations += 1
            continue
        if code < SEND_F or code >= OVERLAPPED:
            key = stages[i] * KEYS + code % OVERLAPPED * 2
            if has_lookaheads and lookaheads[i] > 0 and others[i] > 0:
                key += 1
        elif UNSHARD < code < RESHARD:
            piece = 8 if len(copies) and copies[i] else 0
            key = stages[i] * KEYS + _STEP_KEY + 2 * (code - STEP) + piece // 8
        else:
            continue
        if code < OVERLAPPED and key_before < 0:
            if ranks[key] != rank:
                ranks[key], numbers_of[key] = rank, num_durations
                first_cells[num_durations], pieces[num_durations] = i, piece
                num_durations += 1
            own[i] = numbers_of[key]
        elif key_before < 0:
            key_before = key
        else:
            pair = 0
            while pair < num_pairs and (pairs[3 * pair] != key_before or pairs[3 * pair + 1] != key):
                pair += 1
            if pair == num_pairs:
                pairs[3 * pair], pairs[3 * pair + 1], pairs[3 * pair + 2] = key_before, key, num_durations
                num_pairs += 1
                for piece in range(3):
                    first_cells[num_durations], pieces[num_durations] = i - 1, piece
                    num_durations += 1
            own[i - 1], key_before = pairs[3 * pair + 2], -1
    program.counts[3] = num_durations


def write_rank(  # noqa: C901 -- as above
    cells: Cells, table: MessageTable, rules: WriterRules, program: WrittenProgram, messages: HeldMessages,
    latencies: list[int], numbers: CellNumbers, rank: int, end: int,
) -> int:  # fmt: skip
    """Write the instructions of a rank from `end` on; return the new end, or minus the code of an error."""
    begins, codes, stages, microbatches, _, _ = cells
    owns, foreign, mades, num_stages = table.own, table.other, table.made, len(table.receivers) // 2
    kinds, targets, takes, channel_of = program.kinds, program.targets, program.takes, program.channel_of
    (there, arrived), (own, awaited, _) = messages, numbers
    _, num_microbatches, is_blocking, has_latency = rules
    i, last_cell = begins[rank], begins[rank + 1]
    while i < last_cell:
        if end + 10 > len(kinds):
            return -CROWDED
        code, last = codes[i], i + codes[i] // OVERLAPPED
        if code < SEND_F or code >= OVERLAPPED:
            for part in range(i, last + 1 if len(awaited) > 0 else i):
                if awaited[part] >= 0:
                    kinds[end], targets[end] = WAIT, awaited[part]
                    end += 1
            for part in range(i, last + 1):
                row = codes[part] % OVERLAPPED * num_stages + stages[part]
                for needed in (owns[row], foreign[row]):
                    if needed < 0:
                        continue
                    message = needed * num_microbatches + microbatches[part]
                    if there[message] != rank:
                        return -MISSING
                    if arrived[message] >= 0:
                        kinds[end], targets[end] = WAIT, arrived[message]
                        arrived[message], end = -1, end + 1
            for part in range(i, last + 1):
                made = mades[codes[part] % OVERLAPPED * num_stages + stages[part]]
                if made >= 0:
                    message = made * num_microbatches + microbatches[part]
                    there[message], arrived[message] = rank, -1
            kinds[end], takes[end] = WORK, own[i]
            for piece in range(1, 3 if last > i else 1):
                end += 1
                kinds[end], takes[end] = WORK, own[i] + piece
        elif code <= SEND_B:
            kinds[end], targets[end] = SEND, own[i]
            if is_blocking:
                end += 1
                kinds[end], targets[end] = WAIT, own[i]
                takes[end] = latencies[channel_of[own[i]]] if has_latency else 0
        elif code < POST_REDUCE:
            kinds[end], targets[end] = RECV, own[i]
            message = ((0 if code == RECV_F else num_stages) + stages[i]) * num_microbatches + microbatches[i]
            if there[message] != rank or arrived[message] >= 0:
                there[message], arrived[message] = rank, own[i]
        elif code == POST_REDUCE:
            if awaited[i] >= 0:
                kinds[end], targets[end] = WAIT, awaited[i]
                end += 1
            kinds[end], targets[end] = REDUCE, own[i]
        elif UNSHARD < code < RESHARD:
            if len(awaited) > 0 and awaited[i] >= 0:
                kinds[end], targets[end] = WAIT, awaited[i]
                end += 1
            kinds[end], takes[end] = WORK, own[i]
        elif code == UNSHARD:
            kinds[end], targets[end] = REDUCE, own[i]
        elif code == RESHARD:
            kinds[end] = MARK
        else:
            raise ValueError("op code: got an unknown code; add it to `write_instructions`")
        i, end = last + 1, end + 1
    return end


def write_instructions(
    cells: Cells, table: MessageTable, rules: WriterRules, program: WrittenProgram, durations: KnownDurations,
    transfers: KnownTransfers, reductions: KnownReductions, messages: HeldMessages, numbers: CellNumbers,
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
        messages: Known messages.
        numbers: Numbers of the cells.

    Returns:
        `WRITTEN`, or the kind of error.
    """
    outcome = number_transfers(cells, rules.num_microbatches, program, transfers, numbers.own)
    if outcome == WRITTEN and len(program.reduced) > 0:
        outcome = number_reductions(cells, program.counts, program.reduced, reductions, numbers)
    if outcome != WRITTEN:
        return outcome
    kinds, end, program.counts[3] = program.kinds, 0, 1
    for rank in range(len(cells.begins) - 1):
        program.begins[rank] = end
        number_durations(cells, rules, program, durations, numbers.own, rank)
        end = write_rank(cells, table, rules, program, messages, durations.latencies, numbers, rank, end)
        if end < 0:
            return -end
        for i in range(cells.begins[rank], cells.begins[rank + 1] if len(numbers.at_end) > 0 else 0):
            if cells.codes[i] == POST_REDUCE and numbers.at_end[i] >= 0:
                if end + 2 > len(kinds):
                    return CROWDED
                kinds[end], program.targets[end] = WAIT, numbers.at_end[i]
                end += 1
        kinds[end] = END
        end += 1
    program.begins[len(cells.begins) - 1] = end
    program.counts[0] = end
    return WRITTEN


WRITER_PARTS = (number_transfers, number_reductions, number_durations, write_rank)
"""The functions that `write_instructions` calls, once for all ranks, or once for each."""


class ProgramShape(NamedTuple):
    """Where the times of ops are in a program.

    Attributes:
        begins: Index of each rank's first instruction, then the number of instructions.
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
        posted: Output: the time when the rank reaches each op.
        starts: Output: the start of each op.
        ends: Output: the end of each op.

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
            while code == POST_REDUCE and kinds[at] == WAIT:
                at += 1
            if SEND_F <= code <= UNSHARD:
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
