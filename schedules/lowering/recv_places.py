"""Where Recvs go: work through lists without communication by vector clocks, as a loop over numbers.

    rank 0   F0 ─┐ F1 ..           clock of rank 0 at F0: 1 0     1F0 knows that one cell of rank 0 is over
                 └> F0 B0 ─┐                  rank 1 at B0: 1 2
    rank 0   F0 F1         └> B0   so the Recv of B0's gradient stands behind the first cell of rank 0

Message number stage * m + microbatch is an activation; a gradient's has all activations before it. A clock counts
cells; one is kept for each message that is on its way.
"""

from __future__ import annotations

from typing import Any

from pipesched.schedules import op_cells

F, B, I, W, R = op_cells.F, op_cells.B, op_cells.I, op_cells.W, op_cells.R  # noqa: E741
SEND_F, REDUCE, STEP, OVERLAPPED = op_cells.SEND_F, op_cells.REDUCE, op_cells.STEP, op_cells.OVERLAPPED

DONE, STUCK, FULL = range(3)
"""Results of `work_through`: all lists are finished, some cannot finish, or more clocks must be kept."""


def find_meetings(  # noqa: C901 -- as below
    begins: Any, codes: Any, stages: Any, microbatches: Any, num_microbatches: int, meetings: Any, counts: Any,
    members: Any, homes: Any,
) -> int:  # fmt: skip
    """Find the rank of each F, and which Reduces meet.

    Args:
        begins: R + 1 indices, and then columns of n cells, as in `OpColumns`.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_microbatches: m.
        meetings: n numbers, -1 at first: of a Reduce its meeting, of a Step the meeting of its stage's last Reduce.
        counts: 2 numbers per stage, zeros at first: room to count.
        members: Number of ranks that reduce each stage, 0 at first.
        homes: Rank of the F of each micro-batch of each stage, -1 at first.

    Returns:
        Number of meetings.
    """
    num_stages, num_meetings = len(members), 0
    for turn in range(2):  # first how many meetings each stage has, then which they are
        for rank in range(len(begins) - 1):
            num_reduces = 0
            for i in range(begins[rank], begins[rank + 1]):
                code, stage = codes[i] % OVERLAPPED, stages[i]
                if code == F:
                    homes[stage * num_microbatches + microbatches[i]] = rank
                elif code == REDUCE:
                    if turn:
                        meetings[i] = counts[stage] + counts[num_stages + stage]
                    elif counts[num_stages + stage] == 0:
                        members[stage] += 1
                    counts[num_stages + stage] += 1
                    num_reduces += 1
                    if turn == 0 and counts[num_stages + stage] > counts[stage]:
                        counts[stage] = counts[num_stages + stage]
                elif code == STEP and turn and counts[num_stages + stage]:
                    meetings[i] = counts[stage] + counts[num_stages + stage] - 1
            if num_reduces:
                for i in range(begins[rank], begins[rank + 1]):
                    if codes[i] == REDUCE:
                        counts[num_stages + stages[i]] = 0
        if turn == 0:
            for stage in range(num_stages):
                num_meetings, counts[stage] = num_meetings + counts[stage], num_meetings
            if num_meetings == 0:
                break
    return num_meetings


def work_through(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    begins: Any, codes: Any, stages: Any, microbatches: Any, num_stages: int, num_microbatches: int, homes: Any,
    meetings: Any, members: Any, at: Any, ready: Any, blocked: Any, clocks: Any, kept: Any, free: Any, told: Any,
    num_there: Any, makers: Any, slots: Any, waiters: Any, places: Any,
) -> int:  # fmt: skip
    """Work all lists through, and find where the Recvs of their messages go.

    Args:
        begins: Same as in `find_meetings`, like the next five and `members`.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_stages: Number of stages.
        num_microbatches: m.
        homes: The rank of each F.
        meetings: The meetings of n cells.
        members: Number of ranks that reduce each stage.
        at: Next cell of each rank; R numbers, to be written.
        ready: The ranks that can continue; R numbers, to be written.
        blocked: The meeting that each rank waits for, -1 at first.
        clocks: R rows of R zeros: the number of each rank's cells that are surely over, as known by each rank.
        kept: Room for clocks of messages.
        free: The free rows of `kept`; to be written, with the same length.
        told: A row of R zeros for each meeting: the joint clock of its ranks.
        num_there: Number of ranks that have come to each meeting, 0 at first.
        makers: Rank that has made each message, -1 at first.
        slots: Row in `kept` of each message, -1 at first.
        waiters: Rank that waits for each message, -1 at first.
        places: n numbers, -1 at first: for a cell that makes a message for another rank, the cell there in front of
            which its Recv goes. Cells are counted over all ranks, and the end of each rank counts as one more cell.

    Returns:
        `DONE`, `STUCK` or `FULL`.
    """
    num_ranks, num_ready, num_free, gradients = len(at), len(ready), len(free), num_stages * num_microbatches
    for rank in range(num_ranks):
        at[rank], ready[rank] = begins[rank], rank
    for row in range(num_free):
        free[row] = row
    while num_ready:
        num_ready -= 1
        rank = ready[num_ready]
        i, clock = at[rank], clocks[rank]
        while i < begins[rank + 1]:
            code, stage = codes[i], stages[i]
            last = i + 1 if code >= OVERLAPPED else i
            missing = -1
            for part in range(i, last + 1):  # the inputs
                code, stage = codes[part] % OVERLAPPED, stages[part]
                if code >= SEND_F:
                    continue
                own = stage * num_microbatches + microbatches[part]
                if code == F:
                    if stage and makers[own - num_microbatches] < 0:
                        missing = own - num_microbatches
                elif code == W:
                    if makers[gradients + own] != rank:
                        missing = gradients + own
                elif makers[own] != rank:
                    missing = own
                elif code != R and stage + 1 < num_stages and makers[gradients + own + num_microbatches] < 0:
                    missing = gradients + own + num_microbatches
                if missing >= 0:
                    break
            if missing >= 0:
                waiters[missing] = rank
                break
            if code == STEP and meetings[i] >= 0:
                if num_there[meetings[i]] < members[stage]:
                    blocked[rank] = meetings[i]
                    break
                others = told[meetings[i]]
                for other in range(num_ranks):
                    known = others[other]
                    clock[other] = known if known > clock[other] else clock[other]
            for part in range(i, last + 1):  # the clocks of other ranks' messages
                code = codes[part] % OVERLAPPED
                message = -1
                if code == F and stages[part]:
                    message = (stages[part] - 1) * num_microbatches + microbatches[part]
                elif code in (B, I) and stages[part] + 1 < num_stages:
                    message = gradients + (stages[part] + 1) * num_microbatches + microbatches[part]
                if message >= 0 and slots[message] >= 0:
                    others = kept[slots[message]]
                    for other in range(num_ranks):
                        known = others[other]
                        clock[other] = known if known > clock[other] else clock[other]
                    free[num_free] = slots[message]
                    num_free += 1
                    slots[message] = -1
            clock[rank] = last + 1 - begins[rank]
            if code == REDUCE:
                meeting = meetings[i]
                others = told[meeting]
                for other in range(num_ranks):
                    known = clock[other]
                    others[other] = known if known > others[other] else others[other]
                num_there[meeting] += 1
                if num_there[meeting] == members[stage]:
                    for other in range(num_ranks):
                        if blocked[other] == meeting:
                            blocked[other] = -1
                            ready[num_ready] = other
                            num_ready += 1
            for part in range(i, last + 1):  # the outputs
                code, stage = codes[part] % OVERLAPPED, stages[part]
                if code > I:
                    continue
                message, receiver = stage * num_microbatches + microbatches[part], stage + 1
                if code != F:
                    message, receiver = gradients + message, stage - 1
                makers[message] = rank
                if waiters[message] >= 0:
                    ready[num_ready] = waiters[message]
                    num_ready += 1
                    waiters[message] = -1
                if receiver < 0 or receiver == num_stages:
                    continue
                peer = homes[receiver * num_microbatches + microbatches[part]]
                if peer >= 0 and peer != rank:
                    if num_free == 0:
                        return FULL
                    num_free -= 1
                    slots[message] = free[num_free]
                    others = kept[free[num_free]]
                    for other in range(num_ranks):
                        others[other] = clock[other]
                    places[part] = begins[peer] + clock[peer] + peer
            i = last + 1
        at[rank] = i
    for rank in range(num_ranks):
        if at[rank] < begins[rank + 1]:
            return STUCK
    for meeting in range(len(num_there)):
        if num_there[meeting] == 0:
            return STUCK
    for i in range(len(codes)):
        if codes[i] == REDUCE and num_there[meetings[i]] < members[stages[i]]:
            return STUCK
    return DONE


def write_lowered(  # noqa: C901 -- as above
    begins: Any, codes: Any, stages: Any, microbatches: Any, others: Any, lookaheads: Any, num_microbatches: int,
    homes: Any, places: Any, bounds: Any, lowered_begins: Any, lowered_codes: Any, lowered_stages: Any,
    lowered_microbatches: Any, lowered_others: Any, lowered_lookaheads: Any,
) -> None:  # fmt: skip
    """Write the columns with Sends and Recvs.

    Args:
        begins: Same as in `work_through`, like the next three.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        others: n versions, or empty.
        lookaheads: n look-aheads, or empty.
        num_microbatches: m.
        homes: The rank of each F.
        places: Places of Recvs, from `work_through`.
        bounds: n + R zeros: room to count Recvs.
        lowered_begins: R + 1 numbers, and then columns of all cells, to be written.
        lowered_codes: Codes.
        lowered_stages: Stages.
        lowered_microbatches: Micro-batches.
        lowered_others: Peers and versions.
        lowered_lookaheads: Look-aheads; empty without any.
    """
    for i in range(len(places)):
        if places[i] >= 0:
            bounds[places[i]] += 1
    end = 0
    for rank in range(len(begins) - 1):
        lowered_begins[rank] = end
        first = begins[rank]
        for i in range(begins[rank], begins[rank + 1] + 1):
            count, bounds[i + rank] = bounds[i + rank], end
            end += count
            if i == begins[rank + 1]:
                break
            code = codes[i]
            lowered_codes[end], lowered_stages[end], lowered_microbatches[end] = code, stages[i], microbatches[i]
            if len(others):
                lowered_others[end] = others[i]
            if len(lookaheads):
                lowered_lookaheads[end] = lookaheads[i]
            end += 1
            if code >= OVERLAPPED:
                continue
            while first <= i:
                if places[first] >= 0:
                    code, stage, microbatch = codes[first] % OVERLAPPED, stages[first], microbatches[first]
                    receiver = stage + 1 if code == F else stage - 1
                    lowered_codes[end] = SEND_F if code == F else op_cells.SEND_B
                    lowered_stages[end], lowered_microbatches[end] = stage, microbatch
                    lowered_others[end] = homes[receiver * num_microbatches + microbatch]
                    end += 1
                first += 1
    lowered_begins[len(begins) - 1] = end
    for rank in range(len(begins) - 1):  # so the Recvs of a place are ordered by peer
        for i in range(begins[rank], begins[rank + 1]):
            if places[i] >= 0:
                at = bounds[places[i]]
                bounds[places[i]] += 1
                lowered_codes[at] = op_cells.RECV_F if codes[i] % OVERLAPPED == F else op_cells.RECV_B
                lowered_stages[at], lowered_microbatches[at] = stages[i], microbatches[i]
                lowered_others[at] = rank
