"""Where Recvs go: work through lists without communication by vector clocks, as a loop over numbers.

    rank 0   F0 ─┐ F1 ..           clock of rank 0 at F0: 1 0     1F0 knows that one cell of rank 0 is over
                 └> F0 B0 ─┐                  rank 1 at B0: 1 2
    rank 0   F0 F1         └> B0   so the Recv of B0's gradient stands behind the first cell of rank 0

The loops number messages by `message_table`. A clock counts cells; one is kept for each message that is on its way.
"""

from __future__ import annotations

from typing import NamedTuple

from pipesched.schedules import Cells, MessageTable, op_cells

F, SEND_F, SEND_B, RECV_F, RECV_B, REDUCE, STEP, RESHARD, OVERLAPPED = (
    op_cells.F, op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F, op_cells.RECV_B, op_cells.REDUCE, op_cells.STEP,
    op_cells.RESHARD, op_cells.OVERLAPPED,
)  # fmt: skip

DONE, STUCK, FULL = range(3)
"""Results of `work_through`: all lists are finished, some cannot finish, or more clocks must be kept."""


class ReduceMeetings(NamedTuple):
    """The meetings of ranks that reduce the gradients of a stage.

    Attributes:
        of_cell: Meeting of a Reduce, or of the last Reduce before a Step; -1 for other cells.
        members: Number of ranks that reduce a stage, by stage.
    """

    of_cell: list[int]
    members: list[int]


class MeetingClocks(NamedTuple):
    """The mutable state of the meetings.

    Attributes:
        clocks: Joint clock of the ranks that have come, a row by meeting; zeros at first.
        num_there: Number of ranks that have come, by meeting; zeros at first.
    """

    clocks: list[list[int]]
    num_there: list[int]


class KnownRanks(NamedTuple):
    """The mutable state of the ranks.

    Attributes:
        at: Next cell, by rank.
        ready: Stack of the ranks that can continue.
        num_ready: Height of the stack, in a column of one number.
        blocked: Meeting that a rank waits for, by rank; -1 at first.
        clocks: Number of each rank's cells that are surely over, a row by rank; zeros at first.
    """

    at: list[int]
    ready: list[int]
    num_ready: list[int]
    blocked: list[int]
    clocks: list[list[int]]


class KnownMessages(NamedTuple):
    """The mutable state of the messages.

    Attributes:
        makers: Rank that has made a message, by message; -1 at first.
        slots: Row of a message in `clocks`, by message; -1 at first.
        waiters: Rank that waits for a message, by message; -1 at first.
        clocks: Clocks of makers, a row by slot.
        free: Stack of free slots, as long as `clocks`.
        num_free: Height of the stack, in a column of one number.
    """

    makers: list[int]
    slots: list[int]
    waiters: list[int]
    clocks: list[list[int]]
    free: list[int]
    num_free: list[int]


def find_meetings(  # noqa: C901 -- one loop, as below
    cells: Cells, num_microbatches: int, meetings: ReduceMeetings, counts: list[int], homes: list[int]
) -> int:
    """Find the rank of each F, and which Reduces meet.

    Args:
        cells: The lists.
        num_microbatches: m.
        meetings: The meetings, to be written.
        counts: 2 numbers per stage, zeros at first: room to count.
        homes: Rank of the F of each micro-batch of each stage, -1 at first; to be written.

    Returns:
        Number of meetings.
    """
    begins, codes, stages, microbatches, _, _ = cells
    of_cell, members = meetings
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
                        of_cell[i] = counts[stage] + counts[num_stages + stage]
                    elif counts[num_stages + stage] == 0:
                        members[stage] += 1
                    counts[num_stages + stage] += 1
                    num_reduces += 1
                    if turn == 0 and counts[num_stages + stage] > counts[stage]:
                        counts[stage] = counts[num_stages + stage]
                elif code == STEP and turn and counts[num_stages + stage]:
                    of_cell[i] = counts[stage] + counts[num_stages + stage] - 1
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


def join(clock: list[int], other: list[int]) -> None:
    """Raise the counts of a clock to the counts of another clock."""
    for rank in range(len(clock)):
        known = other[rank]
        clock[rank] = known if known > clock[rank] else clock[rank]


def missing_message(own: int, other: int, rank: int, makers: list[int]) -> int:
    """Return the first of two messages that a computation of a rank needs and that is not there, or -1.

    Args:
        own: Message of its own stage, which the rank must have made; below 0 without one.
        other: Message of another stage; below 0 without one.
        rank: The rank.
        makers: Rank that has made a message, by message.
    """
    if own >= 0 and makers[own] != rank:
        return own
    return other if other >= 0 and makers[other] < 0 else -1


def reduce_gradients(
    meeting: int, num_members: int, clock: list[int], met_clocks: list[list[int]], num_there: list[int],
    blocked: list[int], ready: list[int], num_ready: list[int],
) -> None:  # fmt: skip
    """Come to a meeting with a clock; the last rank that comes wakes the ranks that wait."""
    join(met_clocks[meeting], clock)
    num_there[meeting] += 1
    if num_there[meeting] < num_members:
        return
    for other in range(len(clock)):
        if blocked[other] == meeting:
            blocked[other] = -1
            ready[num_ready[0]] = other
            num_ready[0] += 1


def learn(
    message: int, clock: list[int], slots: list[int], kept: list[list[int]], free: list[int], num_free: list[int]
) -> None:
    """Join the clock of a message that is on its way, and free its slot."""
    slot = slots[message]
    if slot < 0:
        return
    join(clock, kept[slot])
    free[num_free[0]] = slot
    num_free[0] += 1
    slots[message] = -1


def keep_clock(
    message: int, clock: list[int], slots: list[int], kept: list[list[int]], free: list[int], num_free: list[int]
) -> bool:
    """Keep the clock of a message that is on its way; return False if no slot is free."""
    if num_free[0] == 0:
        return False
    num_free[0] -= 1
    slot = free[num_free[0]]
    slots[message] = slot
    for other in range(len(clock)):
        kept[slot][other] = clock[other]
    return True


def continue_rank(  # noqa: C901 -- one loop: more calls would cost plain Python more than the work
    rank: int, cells: Cells, table: MessageTable, num_microbatches: int, homes: list[int], meetings: ReduceMeetings,
    met: MeetingClocks, ranks: KnownRanks, messages: KnownMessages, places: list[int],
) -> bool:  # fmt: skip
    """Continue the list of a rank until it waits or ends; return False if no slot for a clock is free."""
    begins, codes, stages, microbatches, _, _ = cells
    owns, others, mades, receivers = table
    of_cell, members = meetings
    met_clocks, num_there = met
    at, ready, num_ready, blocked, clocks = ranks
    makers, slots, waiters, kept, free, num_free = messages
    i, end, clock, num_stages = at[rank], begins[rank + 1], clocks[rank], len(members)
    while i < end:
        code, last = codes[i] % OVERLAPPED, i + codes[i] // OVERLAPPED
        if code < SEND_F:
            missing = -1
            for part in range(last, i - 1, -1):
                key, microbatch = codes[part] % OVERLAPPED * num_stages + stages[part], microbatches[part]
                own, other = owns[key] * num_microbatches + microbatch, others[key] * num_microbatches + microbatch
                absent = missing_message(own, other, rank, makers)
                missing = absent if absent >= 0 else missing
            if missing >= 0:
                waiters[missing] = rank
                break
            for part in range(i, last + 1):
                other = others[codes[part] % OVERLAPPED * num_stages + stages[part]]
                if other >= 0:
                    learn(other * num_microbatches + microbatches[part], clock, slots, kept, free, num_free)
        elif code == STEP and of_cell[i] >= 0:
            if num_there[of_cell[i]] < members[stages[i]]:
                blocked[rank] = of_cell[i]
                break
            join(clock, met_clocks[of_cell[i]])
        elif code > RESHARD:
            raise ValueError("op code: got an unknown code; add it to `continue_rank`")
        clock[rank] = last + 1 - begins[rank]
        if code == REDUCE:
            reduce_gradients(of_cell[i], members[stages[i]], clock, met_clocks, num_there, blocked, ready, num_ready)
        elif code < SEND_F:
            for part in range(i, last + 1):
                made = mades[codes[part] % OVERLAPPED * num_stages + stages[part]]
                if made < 0:
                    continue
                message, receiver = made * num_microbatches + microbatches[part], receivers[made]
                makers[message] = rank
                if waiters[message] >= 0:
                    ready[num_ready[0]] = waiters[message]
                    num_ready[0] += 1
                    waiters[message] = -1
                peer = homes[receiver * num_microbatches + microbatches[part]] if receiver >= 0 else rank
                if 0 <= peer != rank:
                    if not keep_clock(message, clock, slots, kept, free, num_free):
                        return False
                    places[part] = begins[peer] + clock[peer] + peer
        i = last + 1
    at[rank] = i
    return True


def work_through(  # noqa: C901 -- three conditions on the end
    cells: Cells, table: MessageTable, num_microbatches: int, homes: list[int], meetings: ReduceMeetings,
    met: MeetingClocks, ranks: KnownRanks, messages: KnownMessages, places: list[int],
) -> int:  # fmt: skip
    """Work all lists through, and find where the Recvs of their messages go.

    Args:
        cells: The lists.
        table: Messages of the computations.
        num_microbatches: m.
        homes: The rank of each F, from `find_meetings`.
        meetings: From `find_meetings`.
        met: State of the meetings.
        ranks: State of the ranks.
        messages: State of the messages.
        places: n numbers, -1 at first: for a cell that makes a message for another rank, the cell there in front of
            which its Recv goes. Cells are counted over all ranks, and the end of each rank counts as one more cell.

    Returns:
        `DONE`, `STUCK` or `FULL`.
    """
    num_ranks = len(ranks.at)
    for rank in range(num_ranks):
        ranks.at[rank], ranks.ready[rank] = cells.begins[rank], rank
    for slot in range(len(messages.free)):
        messages.free[slot] = slot
    ranks.num_ready[0], messages.num_free[0] = num_ranks, len(messages.free)
    while ranks.num_ready[0]:
        ranks.num_ready[0] -= 1
        rank = ranks.ready[ranks.num_ready[0]]
        if not continue_rank(rank, cells, table, num_microbatches, homes, meetings, met, ranks, messages, places):
            return FULL
    for rank in range(num_ranks):
        if ranks.at[rank] < cells.begins[rank + 1]:
            return STUCK
    for meeting in range(len(met.num_there)):
        if met.num_there[meeting] == 0:
            return STUCK
    for i in range(len(cells.codes)):
        if cells.codes[i] == REDUCE and met.num_there[meetings.of_cell[i]] < meetings.members[cells.stages[i]]:
            return STUCK
    return DONE


def write_lowered(  # noqa: C901 -- one loop, as above
    cells: Cells,
    table: MessageTable,
    num_microbatches: int,
    homes: list[int],
    places: list[int],
    bounds: list[int],
    lowered: Cells,
) -> None:
    """Write the columns with Sends and Recvs.

    Args:
        cells: The lists.
        table: Messages of the computations.
        num_microbatches: m.
        homes: The rank of each F, from `find_meetings`.
        places: Places of Recvs, from `work_through`.
        bounds: n + R zeros: room to count Recvs.
        lowered: Columns of all cells, to be written.
    """
    begins = cells.begins
    for i in range(len(places)):
        if places[i] >= 0:
            bounds[places[i]] += 1
    end = 0
    for rank in range(len(begins) - 1):
        lowered.begins[rank] = end
        first = begins[rank]
        for i in range(begins[rank], begins[rank + 1]):
            count, bounds[i + rank] = bounds[i + rank], end
            end += count
            copy_cell(i, end, cells, lowered)
            end += 1
            if cells.codes[i] < OVERLAPPED:  # the Sends of an Overlap follow its second part
                while first <= i:
                    if places[first] >= 0:
                        write_post(first, end, False, rank, cells, table, num_microbatches, homes, lowered)
                        end += 1
                    first += 1
        at_end = begins[rank + 1] + rank
        count, bounds[at_end] = bounds[at_end], end
        end += count
    lowered.begins[len(begins) - 1] = end
    for rank in range(len(begins) - 1):  # so the Recvs of a place are ordered by peer
        for i in range(begins[rank], begins[rank + 1]):
            if places[i] >= 0:
                at = bounds[places[i]]
                bounds[places[i]] += 1
                write_post(i, at, True, rank, cells, table, num_microbatches, homes, lowered)


def copy_cell(cell: int, at: int, cells: Cells, lowered: Cells) -> None:
    """Copy a cell into the columns of all cells."""
    lowered.codes[at], lowered.stages[at] = cells.codes[cell], cells.stages[cell]
    lowered.microbatches[at] = cells.microbatches[cell]
    if len(cells.others):
        lowered.others[at] = cells.others[cell]
    if len(cells.lookaheads):
        lowered.lookaheads[at] = cells.lookaheads[cell]


def write_post(
    maker: int, at: int, is_recv: bool, rank: int, cells: Cells, table: MessageTable, num_microbatches: int,
    homes: list[int], lowered: Cells,
) -> None:  # fmt: skip
    """Write the Send or the Recv of the message that a computation on a rank makes."""
    num_stages = len(table.receivers) // 2
    made = table.made[cells.codes[maker] % OVERLAPPED * num_stages + cells.stages[maker]]
    if is_recv:
        lowered.codes[at], lowered.others[at] = RECV_F if made < num_stages else RECV_B, rank
    else:
        lowered.codes[at] = SEND_F if made < num_stages else SEND_B
        lowered.others[at] = homes[table.receivers[made] * num_microbatches + cells.microbatches[maker]]
    lowered.stages[at], lowered.microbatches[at] = cells.stages[maker], cells.microbatches[maker]


WORK_PARTS = (join, learn, missing_message, reduce_gradients, keep_clock, continue_rank)
"""The functions that `work_through` calls, for numba."""

WRITE_PARTS = (copy_cell, write_post)
"""The functions that `write_lowered` calls, for numba."""
