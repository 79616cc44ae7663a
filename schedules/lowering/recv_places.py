"""The places of Recvs in lists without communication, found with vector clocks, as loops over numbers.

    rank 0   F0 ─┐ F1 ..           clock of rank 0 at F0: 1 0     1F0 knows that one cell of rank 0 is over
                 └> F0 B0 ─┐                  rank 1 at B0: 1 2
    rank 0   F0 F1         └> B0   so the Recv of B0's gradient stands behind the first cell of rank 0

The loops number messages by `message_table`. A clock counts cells. Each message has a clock from the time when it is
made until it is used.
"""

from __future__ import annotations

from typing import NamedTuple

from pipesched.schedules.columns import Cells, MessageTable, op_cells

SEND_F, SEND_B, RECV_F, RECV_B, REDUCE, STEP, RESHARD, OVERLAPPED = (
    op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F, op_cells.RECV_B, op_cells.REDUCE, op_cells.STEP,
    op_cells.RESHARD, op_cells.OVERLAPPED,
)  # fmt: skip

DONE, STUCK, FULL = range(3)
"""Results of `work_through`: all lists finish, some cannot finish, or the room for clocks is too small."""


class ReduceMeetings(NamedTuple):
    """The meetings of ranks that sum the gradients of a stage; other sums give no places.

    Attributes:
        of_cell: Meeting of a Reduce of gradients, or of the last before a Step; -1 for other cells.
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
        blocked: Meeting that a rank waits for, by rank; -1 at first.
        clocks: Number of each rank's cells that are surely over, a row by rank; zeros at first.
    """

    at: list[int]
    ready: list[int]
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
    """

    makers: list[int]
    slots: list[int]
    waiters: list[int]
    clocks: list[list[int]]
    free: list[int]


def work_through(  # noqa: C901 -- one loop: more calls would cost more than the work
    cells: Cells, table: MessageTable, num_microbatches: int, homes: list[int], meetings: ReduceMeetings,
    met: MeetingClocks, ranks: KnownRanks, messages: KnownMessages, places: list[int],
) -> int:  # fmt: skip
    """Work all lists through, and find where the Recvs of their messages go.

    Args:
        cells: The lists.
        table: Messages of the computations.
        num_microbatches: m.
        homes: Rank of the F of each micro-batch of each stage, or -1.
        meetings: The meetings.
        met: State of the meetings.
        ranks: State of the ranks.
        messages: State of the messages.
        places: n numbers, -1 at first: for a cell that makes a message for another rank, the cell of that rank before
            which the Recv is inserted. Cells are counted over all ranks, and the end of each rank counts as one more
            cell.

    Returns:
        `DONE`, `STUCK` or `FULL`.
    """
    begins, codes, stages, microbatches, _, _ = cells
    owns, others, mades, receivers = table
    of_cell, members = meetings
    met_clocks, num_there = met
    at, ready, blocked, clocks = ranks
    makers, slots, waiters, kept, free = messages
    num_ready, num_free, num_stages = len(at), len(free), len(members)
    for rank in range(num_ready):
        at[rank], ready[rank] = begins[rank], rank
    for slot in range(num_free):
        free[slot] = slot
    while num_ready:
        num_ready -= 1
        rank = ready[num_ready]
        i, clock = at[rank], clocks[rank]
        while i < begins[rank + 1]:
            code, last, missing = codes[i] % OVERLAPPED, i + codes[i] // OVERLAPPED, -1
            if code < SEND_F:
                for part in range(i, last + 1):
                    key, microbatch = codes[part] % OVERLAPPED * num_stages + stages[part], microbatches[part]
                    own, other = owns[key] * num_microbatches + microbatch, others[key] * num_microbatches + microbatch
                    if missing < 0 and own >= 0 and makers[own] != rank:
                        missing = own
                    elif missing < 0 and other >= 0 and makers[other] < 0:
                        missing = other
                if missing >= 0:
                    waiters[missing] = rank
                    break
                for part in range(i, last + 1):  # learn from the messages of other ranks, and free their slots
                    other = others[codes[part] % OVERLAPPED * num_stages + stages[part]]
                    message = other * num_microbatches + microbatches[part]
                    if message >= 0 and slots[message] >= 0:
                        news = kept[slots[message]]
                        for peer in range(len(clock)):
                            known = news[peer]
                            clock[peer] = known if known > clock[peer] else clock[peer]
                        free[num_free], slots[message] = slots[message], -1
                        num_free += 1
            elif code == STEP and of_cell[i] >= 0:
                if num_there[of_cell[i]] < members[stages[i]]:
                    blocked[rank] = of_cell[i]
                    break
                news = met_clocks[of_cell[i]]
                for peer in range(len(clock)):
                    known = news[peer]
                    clock[peer] = known if known > clock[peer] else clock[peer]
            elif code > RESHARD:
                raise ValueError("op code: got an unknown code; add it to `work_through`")
            clock[rank] = last + 1 - begins[rank]
            if code == REDUCE and of_cell[i] >= 0:
                meeting = of_cell[i]
                news = met_clocks[meeting]
                for peer in range(len(clock)):
                    known = clock[peer]
                    news[peer] = known if known > news[peer] else news[peer]
                num_there[meeting] += 1
                if num_there[meeting] == members[stages[i]]:
                    for other in range(len(blocked)):
                        if blocked[other] == meeting:
                            blocked[other], ready[num_ready] = -1, other
                            num_ready += 1
            elif code < SEND_F:
                for part in range(i, last + 1):
                    made = mades[codes[part] % OVERLAPPED * num_stages + stages[part]]
                    if made < 0:
                        continue
                    message, receiver = made * num_microbatches + microbatches[part], receivers[made]
                    makers[message] = rank
                    if waiters[message] >= 0:
                        ready[num_ready], waiters[message] = waiters[message], -1
                        num_ready += 1
                    peer = homes[receiver * num_microbatches + microbatches[part]] if receiver >= 0 else rank
                    if 0 <= peer != rank:
                        if num_free == 0:
                            return FULL
                        num_free -= 1
                        slots[message], news = free[num_free], kept[free[num_free]]
                        for other in range(len(clock)):
                            news[other] = clock[other]
                        places[part] = begins[peer] + clock[peer] + peer
            i = last + 1
        at[rank] = i
    return DONE if are_over(cells, meetings, met, ranks) else STUCK


def are_over(cells: Cells, meetings: ReduceMeetings, met: MeetingClocks, ranks: KnownRanks) -> bool:
    """Whether all lists are at their ends, and every rank has come to its meetings."""
    for rank in range(len(ranks.at)):
        if ranks.at[rank] < cells.begins[rank + 1]:
            return False
    for meeting in range(len(met.num_there)):
        if met.num_there[meeting] == 0:
            return False
    for i in range(len(cells.codes)):
        if (
            cells.codes[i] == REDUCE
            and meetings.of_cell[i] >= 0
            and met.num_there[meetings.of_cell[i]] < meetings.members[cells.stages[i]]
        ):
            return False
    return True


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
        homes: Rank of the F of each micro-batch of each stage, or -1.
        places: Places of Recvs, from `work_through`.
        bounds: n + R zeros: room to count Recvs.
        lowered: Columns of all cells, to be written.
    """
    begins, codes, stages, microbatches, others, lookaheads = cells
    lowered_begins, lowered_codes, lowered_stages, lowered_microbatches, lowered_others, lowered_lookaheads = lowered
    mades, receivers = table.made, table.receivers
    num_stages, end = len(receivers) // 2, 0
    for i in range(len(places)):
        if places[i] >= 0:
            bounds[places[i]] += 1
    for rank in range(len(begins) - 1):
        lowered_begins[rank] = end
        first = begins[rank]
        for i in range(begins[rank], begins[rank + 1]):
            count, bounds[i + rank] = bounds[i + rank], end
            end += count
            lowered_codes[end], lowered_stages[end], lowered_microbatches[end] = codes[i], stages[i], microbatches[i]
            if len(others):
                lowered_others[end] = others[i]
            if len(lookaheads):
                lowered_lookaheads[end] = lookaheads[i]
            end += 1
            while codes[i] < OVERLAPPED and first <= i:  # the Sends of an Overlap follow its second part
                if places[first] >= 0:
                    made = mades[codes[first] % OVERLAPPED * num_stages + stages[first]]
                    lowered_codes[end] = SEND_F if made < num_stages else SEND_B
                    lowered_stages[end], lowered_microbatches[end] = stages[first], microbatches[first]
                    lowered_others[end] = homes[receivers[made] * num_microbatches + microbatches[first]]
                    end += 1
                first += 1
        at_end = begins[rank + 1] + rank
        count, bounds[at_end] = bounds[at_end], end
        end += count
    lowered_begins[len(begins) - 1] = end
    for rank in range(len(begins) - 1):  # so the Recvs of a place are ordered by peer
        for i in range(begins[rank], begins[rank + 1]):
            if places[i] >= 0:
                at = bounds[places[i]]
                bounds[places[i]] += 1
                made = mades[codes[i] % OVERLAPPED * num_stages + stages[i]]
                lowered_codes[at] = RECV_F if made < num_stages else RECV_B
                lowered_stages[at], lowered_microbatches[at] = stages[i], microbatches[i]
                lowered_others[at] = rank


WORK_PARTS = (are_over,)
"""The functions that `work_through` calls, for numba: few, as a call with arrays costs more than the work."""
