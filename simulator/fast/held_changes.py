"""What each rank holds more or less at each of its instructions, from columns of ops, as a loop over numbers.

    instructions      F0    F1    B0    B1   Step  END      one stage: 100 bytes of weights, 30 of activations
    changes          +30   +30     .  +100-30 -30  -100     at the start of each; what is held always is told beside it

It is the same for lists and for NumPy's arrays, which machine code takes. What is held from when to when is said in
`simulator.memory.lifetimes`, for a run with pooled buffers; predicted copies of weights are not among it.
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
    """Write what changes at each instruction.

    Args:
        begins: R + 1 indices, and then columns of n cells, as `OpColumns` has them: lowered, without look-aheads.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        others: n peers and versions.
        posted: Of each op the instruction at which its rank comes to it.
        starts: Of each op, but of messages, the instruction that it is.
        ends: The instruction behind it.
        num_stages: How many stages there are.
        num_microbatches: m.
        num_versions: How many versions of weights there are.
        is_compressed: Whether something else than the output is sent.
        weights: Bytes of the weights of each stage; so are the next.
        fixed: Bytes that are held always.
        inputs: Bytes of the input, which stays with F where R makes the rest again.
        outputs: Bytes of the output, while it waits for a stage of the same rank.
        sizes: Bytes of the output on its way, and of the gradient of it.
        saved: Bytes that F leaves.
        saved_for_weight: Bytes that I leaves to W.
        working: Bytes that B and I work in.
        are_saved: Whether the output is among what F leaves.
        op_of: Of each cell its op, to be written.
        told: Of each message how many of its receiver's messages its sender had used.
        senders: Of each message its sender, -1 at first.
        at: Of each phase of each micro-batch of each stage its cell, -1 at first.
        used_by: Of each message the cell that uses it, -1 at first.
        received: Of each message the cell of its Recv, -1 at first.
        number_of: Of each how many came over its channel before.
        heads: Of each pair of ranks the first message that is not let go of, -1 at first.
        tails: The last that was sent, -1 at first.
        used: How many messages of the second the first has used, 0 at first.
        gone: How many messages to the second the first has let go of, 0 at first.
        following: Of each cell that sends the next to the same rank, -1 at first.
        gone_at: Of each the cell at whose start its message is let go of, -1 at first.
        last_read: Of each version of each stage the last cell that reads it, -1 at first.
        opened: Of each stage the instruction from which on it has gradients.
        stepped: Of each stage how often its rank has stepped.
        is_here: Of each stage the rank that it was last seen on, -1 at first; and behind those, where it is averaged.
        changes: Of each instruction, 0 at first [bytes].
        are_starts: Of each whether an op that holds something starts there, 0 at first.
        always: Of each rank what it holds always, 0 at first [bytes].
        updates: Of each rank the weights that are averaged, 0 at first [bytes].

    Returns:
        Whether it is written; else a message is sent or received twice.
    """
    num_ranks, gradients, op = len(begins) - 1, num_stages * num_microbatches, 0
    for rank in range(num_ranks):  # what a message proves, as in `schedules.semantics.acknowledgements`
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
