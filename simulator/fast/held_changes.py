"""The change of each rank's memory at each of its instructions, from columns of ops, as a loop over numbers.

    instructions      F0    F1    B0    B1   Step  END      one stage: 100 bytes of weights, 30 of activations
    changes          +30   +30     .  +100-30 -30  -100     at the start of each; constant memory is returned beside it

The loop is the same for lists and for NumPy's arrays, which machine code takes. `simulator.memory.lifetimes` describes
the lifetimes, for a run with pooled buffers; predicted copies of weights are left out.
"""

from __future__ import annotations

from typing import Any

from pipesched.schedules import op_cells

F, B, I, W, R, SEND_F, SEND_B, RECV_F, RECV_B = range(9)  # noqa: E741
REDUCE, STEP, AVERAGE, OVERLAPPED = op_cells.REDUCE, op_cells.STEP, op_cells.AVERAGE, op_cells.OVERLAPPED


def write_changes(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    begins: Any, codes: Any, stages: Any, microbatches: Any, others: Any, posted: Any, starts: Any, ends: Any,
    num_stages: int, num_microbatches: int, num_versions: int, is_compressed: bool,
    weights: Any, fixed: Any, inputs: Any, outputs: Any, sizes: Any, saved: Any, saved_for_weight: Any, working: Any,
    are_saved: Any, op_of: Any, told: Any, senders: Any, at: Any, used_by: Any, received: Any, number_of: Any,
    heads: Any, tails: Any, used: Any, gone: Any, following: Any, gone_at: Any, last_read: Any, opened: Any,
    stepped: Any, is_here: Any, changes: Any, are_starts: Any, always: Any, updates: Any,
) -> bool:  # fmt: skip
    """Write the change of memory at each instruction.

    Args:
        begins: R + 1 indices, and then columns of n cells, as in `OpColumns`: lowered, without look-aheads.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        others: n peers and versions.
        posted: Instruction at which the rank reaches an op, by op.
        starts: Instruction of an op, by op; messages excluded.
        ends: The instruction behind it.
        num_stages: Number of stages.
        num_microbatches: m.
        num_versions: Number of versions of weights.
        is_compressed: Whether a sent message is not the output itself.
        weights: Bytes of the weights, by stage; the next arrays are by stage, too.
        fixed: Bytes that are held always.
        inputs: Bytes of the input, which stays with F if R recomputes the rest.
        outputs: Bytes of the output, while it waits for a stage of the same rank.
        sizes: Bytes of the output in transfer, and of its gradient.
        saved: Bytes that F leaves.
        saved_for_weight: Bytes that I leaves to W.
        working: Working memory of B and I [bytes].
        are_saved: Whether the output is part of the bytes that F leaves.
        op_of: Op of each cell, to be written.
        told: Number of the receiver's messages that the sender had used, by message.
        senders: Sender, by message, -1 at first.
        at: Cell of each phase of each micro-batch of each stage, -1 at first.
        used_by: Cell that uses a message, by message, -1 at first.
        received: Cell of the Recv, by message, -1 at first.
        number_of: Number of earlier messages over its channel, by message.
        heads: First message that is not yet freed, by pair of ranks, -1 at first.
        tails: Last sent message, by pair of ranks, -1 at first.
        used: Messages of the second rank that the first has used, by pair of ranks, 0 at first.
        gone: Messages to the second rank that the first has freed, by pair of ranks, 0 at first.
        following: Cell that sends the next message to the same rank, by message, -1 at first.
        gone_at: Cell at whose start a message is freed, by message, -1 at first.
        last_read: Last cell that reads a version, by version and stage, -1 at first.
        opened: Instruction from which on a stage has gradients, by stage.
        stepped: Number of Steps of its rank so far, by stage.
        is_here: Last rank seen with a stage, by stage, -1 at first; then the same for Averages.
        changes: Change of memory, by instruction, 0 at first [bytes].
        are_starts: Whether an op that holds memory starts at an instruction, 0 at first.
        always: Constant memory, by rank, 0 at first [bytes].
        updates: Averaged weights, by rank, 0 at first [bytes].

    Returns:
        True on success; False if a message is sent or received twice.
    """
    num_ranks, gradients, op = len(begins) - 1, num_stages * num_microbatches, 0
    for rank in range(num_ranks):  # the uses that a message proves, as in `schedules.semantics.acknowledgements`
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
                senders[message], told[message] = rank, used[rank * num_ranks + others[i]]
            elif code <= I:
                message = -1
                if code == F:
                    message = own - num_microbatches
                elif stage + 1 < num_stages:
                    message = gradients + own + num_microbatches
                if message >= 0 and received[message] >= first:
                    pair = rank * num_ranks + others[received[message]]
                    used[pair] = max(used[pair], number_of[message] + 1)
    for pair in range(num_ranks * num_ranks):
        heads[pair] = -1
    for rank in range(num_ranks):
        first, last = begins[rank], begins[rank + 1]
        for i in range(first, last):
            code, stage = codes[i] % OVERLAPPED, stages[i]
            own = stage * num_microbatches + microbatches[i]
            if code <= R:
                at[5 * own + code] = i
                last_read[stage * num_versions + others[i]] = i
                if is_here[stage] != rank:
                    is_here[stage], opened[stage], stepped[stage] = rank, -1, 0
                    always[rank] += fixed[stage]
                if code <= I:
                    message = -1
                    if code == F:
                        message = own - num_microbatches
                    elif stage + 1 < num_stages:
                        message = gradients + own + num_microbatches
                    if message >= 0:
                        used_by[message] = i
                        if first <= received[message] < last:
                            pair = rank * num_ranks + others[received[message]]
                            while gone[pair] < told[message]:
                                gone_at[heads[pair]] = i
                                heads[pair] = following[heads[pair]]
                                gone[pair] += 1
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
                since = start
                if code == F:
                    again = at[5 * own + R]
                    back = at[5 * own + B] if at[5 * own + B] >= first else at[5 * own + I]
                    if again >= first:
                        changes[start] += inputs[stage]
                        since = starts[op_of[again]]
                        changes[since] -= inputs[stage]
                    changes[since] += saved[stage]
                    if back >= first:
                        changes[ends[op_of[back]]] -= saved[stage]
                    if at[5 * own + I] >= first:
                        changes[ends[op_of[back]]] += saved_for_weight[stage]
                        if at[5 * own + W] >= first:
                            changes[ends[op_of[at[5 * own + W]]]] -= saved_for_weight[stage]
                if code in (B, I):
                    changes[start] += working[stage]
                    changes[end] -= working[stage]
                if code in (B, W) and opened[stage] < 0:
                    opened[stage] = end
                    changes[end] += weights[stage]
                message, origin = -1, stage
                if code == F:
                    message, origin = own - num_microbatches, stage - 1
                elif code <= I and stage + 1 < num_stages:
                    message = gradients + own + num_microbatches
                if message >= 0 and not first <= received[message] < last:  # of the same rank
                    maker = at[5 * (own - num_microbatches)] if code == F else -1
                    if code != F:
                        behind = 5 * (own + num_microbatches)
                        maker = at[behind + B] if at[behind + B] >= first else at[behind + I]
                    is_kept = code == F and are_saved[origin] and at[5 * (own - num_microbatches) + R] < first
                    if maker >= first and not is_kept:
                        made, until = ends[op_of[maker]], start if code == F else end
                        if made < until:
                            changes[made] += outputs[origin]
                            changes[until] -= outputs[origin]
            elif code in (SEND_F, SEND_B):
                is_forward, origin = code == SEND_F, stage if code == SEND_F else stage - 1
                maker = at[5 * own + F]
                if not is_forward:
                    maker = at[5 * own + B] if at[5 * own + B] >= first else at[5 * own + I]
                is_kept = is_forward and maker >= first and are_saved[stage] and at[5 * own + R] < first
                if is_compressed or not is_kept:
                    made = ends[op_of[maker]] if maker >= first else posted[op_of[i]]
                    until = starts[op_of[gone_at[i]]] if gone_at[i] >= 0 else -1
                    if until < 0 or made < until:
                        changes[made] += sizes[origin]
                        if until >= 0:
                            changes[until] -= sizes[origin]
            elif code in (RECV_F, RECV_B):
                message, origin = (own, stage) if code == RECV_F else (gradients + own, stage - 1)
                changes[posted[op_of[i]]] += sizes[origin]
                user = used_by[message]
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
            elif code == AVERAGE and is_here[num_stages + stage] != rank:
                is_here[num_stages + stage] = rank
                updates[rank] += weights[stage]
    return True
