"""The change of each rank's memory at each of its instructions, from columns of ops, as a loop over numbers.

    instructions      F0    F1    B0    B1   Step  END      one stage: 100 bytes of weights, 30 of activations
    changes          +30   +30     .  +100-30 -30  -100     at the start of each; constant memory is a separate result

The same loop runs over lists in plain Python and over NumPy arrays in machine code. `simulator.memory.lifetimes`
defines the lifetimes. This loop assumes pooled buffers, and leaves out predicted copies of weights.
"""

from __future__ import annotations

from typing import NamedTuple

from pipesched.schedules.columns import Cells, MessageTable, op_cells
from pipesched.simulator.fast.program import SpanNumbers

F, B, I, W, R, SEND_F, SEND_B, RECV_F, RECV_B, STEP, AVERAGE, RESHARD, OVERLAPPED = (  # noqa: E741
    op_cells.F, op_cells.B, op_cells.I, op_cells.W, op_cells.R, op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F,
    op_cells.RECV_B, op_cells.STEP, op_cells.AVERAGE, op_cells.RESHARD, op_cells.OVERLAPPED,
)  # fmt: skip


class HeldRules(NamedTuple):
    """The counts and the flag that all ranks share.

    Attributes:
        num_microbatches: m.
        num_versions: Number of versions of weights.
        is_compressed: Whether a sent message is not the output itself.
    """

    num_microbatches: int
    num_versions: int
    is_compressed: bool


class BytesByStage(NamedTuple):
    """The bytes of each stage.

    Attributes:
        weights: Weights.
        fixed: Constant memory.
        inputs: Input, which stays with F if R recomputes the rest.
        outputs: Output, while it waits for a stage of the same rank.
        sizes: Output in transfer, and its gradient.
        saved: Bytes that F leaves.
        saved_for_weight: Bytes that I leaves to W.
        working: Working memory of B and I.
        are_saved: Whether the output is part of the bytes that F leaves.
    """

    weights: list[int]
    fixed: list[int]
    inputs: list[int]
    outputs: list[int]
    sizes: list[int]
    saved: list[int]
    saved_for_weight: list[int]
    working: list[int]
    are_saved: list[int]


class KnownCells(NamedTuple):
    """Cells by their role.

    A value below the first cell of the current rank, such as -1, means that this rank has no such cell.

    Attributes:
        ops: Op, by cell.
        made: Cell that makes a message, by message.
        used: Cell that uses a message, by message.
        received: Cell of the Recv, by message.
        rebuilt: Cell of R, by micro-batch of a stage.
        weights: Cell of W, by micro-batch of a stage.
        following: Cell that sends the next message to the same rank, by cell of a Send.
        freed: Cell at whose start a sent message is freed, by cell of its Send.
        last_read: Last cell that reads a version, by stage and version.
    """

    ops: list[int]
    made: list[int]
    used: list[int]
    received: list[int]
    rebuilt: list[int]
    weights: list[int]
    following: list[int]
    freed: list[int]
    last_read: list[int]


class KnownUses(NamedTuple):
    """The uses of messages that later messages prove, as in `schedules.semantics.acknowledgements`.

    Attributes:
        proven: Number of the receiver's messages that the sender had used, by message.
        senders: Sender, by message, -1 at first.
        numbers: Number of earlier messages over its channel, by message.
        heads: First message that is not yet freed, by pair of ranks, -1 at first.
        tails: Last sent message, by pair of ranks, -1 at first.
        used: Messages of the second rank that the first has used, by pair of ranks, 0 at first.
        freed: Messages to the second rank that the first has freed, by pair of ranks, 0 at first.
    """

    proven: list[int]
    senders: list[int]
    numbers: list[int]
    heads: list[int]
    tails: list[int]
    used: list[int]
    freed: list[int]


class KnownStages(NamedTuple):
    """The state of the stages of the current rank.

    Attributes:
        opened: Instruction from which on a stage has gradients, or -1, by stage.
        stepped: Number of Steps of its rank so far, by stage.
        ranks: Last rank seen with a stage, by stage, -1 at first.
        averaged: Last rank seen that averages a stage, by stage, -1 at first.
    """

    opened: list[int]
    stepped: list[int]
    ranks: list[int]
    averaged: list[int]


class HeldChanges(NamedTuple):
    """The memory of the ranks, zeros at first, to be written.

    Attributes:
        changes: Change of memory, by instruction [bytes].
        are_starts: Whether an op that holds memory starts at an instruction.
        always: Constant memory, by rank [bytes].
        updates: Averaged weights, by rank [bytes].
    """

    changes: list[int]
    are_starts: list[int]
    always: list[int]
    updates: list[int]


def write_changes(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    cells: Cells, table: MessageTable, numbers: SpanNumbers, rules: HeldRules, sizes_of: BytesByStage,
    known: KnownCells, uses: KnownUses, stage_state: KnownStages, held: HeldChanges,
) -> bool:  # fmt: skip
    """Write the change of memory at each instruction.

    Args:
        cells: The lists, lowered, without look-aheads.
        table: Messages of the computations.
        numbers: Instructions at which the rank reaches an op, starts it, and is behind it, by op; starts and ends
            without messages.
        rules: Rules of micro-batches and versions.
        sizes_of: Bytes of the stages.
        known: Known cells.
        uses: Known uses.
        stage_state: State of the stages.
        held: The memory, to be written.

    Returns:
        True on success; False if a message is sent or received twice.
    """
    begins, codes, stages, microbatches, others, _ = cells
    foreign, mades, num_stages = table.other, table.made, len(table.receivers) // 2
    posted, starts, ends = numbers
    num_microbatches, num_versions, is_compressed = rules
    weights, fixed, inputs, outputs, sizes, saved, saved_for_weight, working, are_saved = sizes_of
    op_of, made_at, used_at, received, rebuilt_at, weight_at, following, freed_at, last_read = known
    proven, senders, number_of, heads, tails, used, freed = uses
    opened, stepped, is_here, is_averaged = stage_state
    changes, are_starts, always, updates = held
    num_ranks, gradients, op = len(begins) - 1, num_stages * num_microbatches, 0
    for rank in range(num_ranks):  # the uses that a message proves
        first = begins[rank]
        for i in range(first, begins[rank + 1]):
            op_of[i] = op
            code, stage = codes[i], stages[i]
            if code < OVERLAPPED:
                op += 1
            code %= OVERLAPPED
            own = stage * num_microbatches + microbatches[i]
            if code in (RECV_F, RECV_B):
                message, pair = (own if code == RECV_F else gradients + own), rank * num_ranks + others[i]
                if received[message] >= 0:
                    return False
                received[message], number_of[message] = i, heads[pair] + 1
                heads[pair] += 1
            elif code in (SEND_F, SEND_B):
                message = own if code == SEND_F else gradients + own
                if senders[message] >= 0:
                    return False
                senders[message], proven[message] = rank, used[rank * num_ranks + others[i]]
            elif code <= R:
                message = foreign[code * num_stages + stage] * num_microbatches + microbatches[i]
                if message >= 0 and received[message] >= first:
                    pair = rank * num_ranks + others[received[message]]
                    used[pair] = max(used[pair], number_of[message] + 1)
            elif code > RESHARD:
                raise ValueError("op code: got an unknown code; add it to `write_changes`")
    for pair in range(num_ranks * num_ranks):
        heads[pair] = -1
    for rank in range(num_ranks):
        first, last = begins[rank], begins[rank + 1]
        for i in range(first, last):
            code, stage = codes[i] % OVERLAPPED, stages[i]
            own = stage * num_microbatches + microbatches[i]
            if code <= R:
                made = mades[code * num_stages + stage]
                if made >= 0:
                    made_at[made * num_microbatches + microbatches[i]] = i
                elif code == R:
                    rebuilt_at[own] = i
                else:
                    weight_at[own] = i
                last_read[stage * num_versions + others[i]] = i
                if is_here[stage] != rank:
                    is_here[stage], opened[stage], stepped[stage] = rank, -1, 0
                    always[rank] += fixed[stage]
                message = foreign[code * num_stages + stage] * num_microbatches + microbatches[i]
                if message >= 0:
                    used_at[message] = i
                    if first <= received[message] < last:
                        pair = rank * num_ranks + others[received[message]]
                        while freed[pair] < proven[message]:
                            freed_at[heads[pair]] = i
                            heads[pair] = following[heads[pair]]
                            freed[pair] += 1
            elif code in (SEND_F, SEND_B):
                pair = rank * num_ranks + others[i]
                if heads[pair] < 0:
                    heads[pair] = i
                else:
                    following[tails[pair]] = i
                tails[pair] = i
        for i in range(first, last):
            code, stage = codes[i] % OVERLAPPED, stages[i]
            own = stage * num_microbatches + microbatches[i]
            if code <= R:
                start, end = starts[op_of[i]], ends[op_of[i]]
                are_starts[start] = 1
                if code == F:
                    since, again, back = start, rebuilt_at[own], made_at[gradients + own]
                    if again >= first:
                        changes[start] += inputs[stage]
                        since = starts[op_of[again]]
                        changes[since] -= inputs[stage]
                    changes[since] += saved[stage]
                    if back >= first:
                        changes[ends[op_of[back]]] -= saved[stage]
                        if codes[back] % OVERLAPPED == I:
                            changes[ends[op_of[back]]] += saved_for_weight[stage]
                            if weight_at[own] >= first:
                                changes[ends[op_of[weight_at[own]]]] -= saved_for_weight[stage]
                if code in (B, I):
                    changes[start] += working[stage]
                    changes[end] -= working[stage]
                if code in (B, W) and opened[stage] < 0:
                    opened[stage] = end
                    changes[end] += weights[stage]
                row = foreign[code * num_stages + stage]
                message = row * num_microbatches + microbatches[i]
                if row >= 0 and not first <= received[message] < last:  # of the same rank
                    maker, origin = made_at[message], (row if row < num_stages else row - num_stages - 1)
                    is_kept = code == F and are_saved[origin] and rebuilt_at[message] < first
                    if maker >= first and not is_kept:
                        since, until = ends[op_of[maker]], start if code == F else end
                        if since < until:
                            changes[since] += outputs[origin]
                            changes[until] -= outputs[origin]
            elif code in (SEND_F, SEND_B):
                message, origin = (own, stage) if code == SEND_F else (gradients + own, stage - 1)
                maker = made_at[message]
                is_kept = code == SEND_F and maker >= first and are_saved[stage] and rebuilt_at[own] < first
                if is_compressed or not is_kept:
                    since = ends[op_of[maker]] if maker >= first else posted[op_of[i]]
                    until = starts[op_of[freed_at[i]]] if freed_at[i] >= 0 else -1
                    if until < 0 or since < until:
                        changes[since] += sizes[origin]
                        if until >= 0:
                            changes[until] -= sizes[origin]
            elif code in (RECV_F, RECV_B):
                message, origin = (own, stage) if code == RECV_F else (gradients + own, stage - 1)
                changes[posted[op_of[i]]] += sizes[origin]
                user = used_at[message]
                if user >= first:
                    until = starts[op_of[user]] if code == RECV_F else ends[op_of[user]]
                    changes[until] -= sizes[origin]
            elif code == STEP:
                start, end = starts[op_of[i]], ends[op_of[i]]
                are_starts[start] = 1
                if is_here[stage] == rank:
                    if opened[stage] >= 0:
                        changes[end] -= weights[stage]
                        opened[stage] = -1
                    if stepped[stage] < num_versions:
                        reader = last_read[stage * num_versions + stepped[stage]]
                        if reader > i:
                            changes[start] += weights[stage]
                            changes[ends[op_of[reader]]] -= weights[stage]
                    stepped[stage] += 1
            elif code == AVERAGE and is_averaged[stage] != rank:
                is_averaged[stage] = rank
                updates[rank] += weights[stage]
    return True
