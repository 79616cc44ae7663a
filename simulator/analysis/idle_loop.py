"""The idle time of a device charged to its causes, as a loop over numbers: for lists, and for NumPy's arrays compiled.

`simulator.analysis.idle_time` defines the causes.
"""

from __future__ import annotations

from typing import NamedTuple

from pipesched.schedules.columns import Cells, Float64s, Int8s, Int32s, MessageTable, op_cells

WARMUP, UPSTREAM, DOWNSTREAM, BUSY_LINK, TRANSFER, HAND_OVER, COLLECTIVE, OVERHEAD, COOLDOWN, BUSY = range(10)
"""The causes, in the order of their names; and BUSY, the time in which the device works."""

SEND_F, SEND_B, RECV_F = op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F
REDUCE, UNSHARD, RESHARD, OVERLAPPED = op_cells.REDUCE, op_cells.UNSHARD, op_cells.RESHARD, op_cells.OVERLAPPED


class Works(NamedTuple):
    """The works of a device, and its ranks' waits behind their last works.

    Attributes:
        cells: Cells of the works, in order of their starts.
        ranks: The rank of each.
        late: Cells that its ranks wait for behind their last works, in the order of posting.
        late_ends_s: The end of the wait for each of these cells [s].
    """

    cells: Int32s
    ranks: Int32s
    late: Int32s
    late_ends_s: Float64s


class Extent(NamedTuple):
    """When a Timeline begins and is over [s], and the longest time that is no gap [s]."""

    from_s: float
    until_s: float
    same_s: float


class SpanTimes(NamedTuple):
    """When the rank reached the op of each cell, when it began, and when it was over [s]."""

    posted_s: Float64s
    starts_s: Float64s
    ends_s: Float64s


class Posts(NamedTuple):
    """The posts that ranks wait for.

    Attributes:
        sends: Cell of the Send of each activation and gradient of a stage, or -1.
        recvs: Cell of the Recv, in the same way.
        reduces: For the cell of a Step, the cell of the Reduce that it waits for; for a computation, the Unshard; -1
            without a wait. Empty if no op waits.
        left_s: For the cell of a Send, the time when the rank has posted it [s]; empty if posting takes no time.
    """

    sends: Int32s
    recvs: Int32s
    reduces: Int32s
    left_s: Float64s


class OwnTimes(NamedTuple):
    """The hand-overs of the ranks.

    Attributes:
        begins: R + 1 indices: where the hand-overs of each rank begin in `starts_s` and `ends_s`; empty without
            hand-overs.
        starts_s: When each begins [s], ascending.
        ends_s: When each ends [s].
    """

    begins: Int32s
    starts_s: Float64s
    ends_s: Float64s


class TimedLists(NamedTuple):
    """The lists of all ranks with their times, and all that ranks wait for.

    Attributes:
        cells: The lists.
        times: The times of their cells.
        table: Messages of the computations.
        num_microbatches: m.
        posts: The posts that ranks wait for.
        own_work: Hand-overs of the ranks.
    """

    cells: Cells
    times: SpanTimes
    table: MessageTable
    num_microbatches: int
    posts: Posts
    own_work: OwnTimes


class Charges(NamedTuple):
    """The seconds of each cause, and the parts of the idle time; zeros at first.

    Attributes:
        sums: 10 sums of seconds, one of each cause and of busy time.
        rests: Their rounding errors.
        causes: Causes of the parts of the idle time, as far as there is room.
        begins_s: When each part begins [s].
        ends_s: When each part is over [s].
        num_parts: Number of parts, in an array of one.
    """

    sums: Float64s
    rests: Float64s
    causes: Int32s
    begins_s: Float64s
    ends_s: Float64s
    num_parts: Int32s


def add_up(row: int, seconds: float, charges: Charges) -> None:
    """Add seconds to a sum, with the rounding error in another sum (Neumaier, 1974)."""
    before = charges.sums[row]
    after = before + seconds
    charges.rests[row] += (before - after) + seconds if abs(before) >= abs(seconds) else (seconds - after) + before
    charges.sums[row] = after


def cut(cause: int, cut_s: float, from_s: float, until_s: float, same_s: float, charges: Charges) -> float:
    """Charge the part of a gap before a cut to a cause; return the start of the rest of the gap [s]."""
    end_s = cut_s if cut_s < until_s - same_s else until_s
    if end_s <= from_s + same_s:
        return from_s
    add_up(cause, end_s - from_s, charges)
    at = charges.num_parts[0]
    if at < len(charges.causes):
        charges.causes[at], charges.begins_s[at], charges.ends_s[at] = cause, from_s, end_s
        charges.num_parts[0] += 1
    return end_s


def is_busy(cell: int, codes: Int8s, starts_s: Float64s, ends_s: Float64s) -> bool:
    """Whether a cell is of an op that keeps its device busy for some time."""
    return bool((codes[cell] < SEND_F or codes[cell] > UNSHARD) and ends_s[cell] > starts_s[cell])


def find_transfers(cells: Cells, num_stages: int, num_microbatches: int, sends: Int32s, recvs: Int32s) -> None:
    """Find the cells where each message is sent and received.

    Args:
        cells: The lists.
        num_stages: Number of stages.
        num_microbatches: m.
        sends: Cell of the Send of each activation and gradient of a stage, -1 at first; to be written.
        recvs: Cell of the Recv, in the same way.
    """
    begins, codes, stages, microbatches, _, _ = cells
    for i in range(begins[len(begins) - 1]):
        if codes[i] % OVERLAPPED > RESHARD:
            raise ValueError("op code: got an unknown code; add it to `find_transfers` and `charge_gap`")
        if SEND_F <= codes[i] < REDUCE:
            is_activation = codes[i] in (SEND_F, RECV_F)
            message = ((0 if is_activation else num_stages) + stages[i]) * num_microbatches + microbatches[i]
            if codes[i] <= SEND_B:
                sends[message] = i
            else:
                recvs[message] = i


def free_s(cell: int, times: SpanTimes, posts: Posts) -> float:
    """Return the time when the rank of a Send has posted it [s]."""
    return float(posts.left_s[cell] if len(posts.left_s) > 0 else times.posted_s[cell])


def cut_message(
    off_s: float, begin_s: float, end_s: float, from_s: float, until_s: float, same_s: float, charges: Charges
) -> float:
    """Charge the part of a gap in which a message goes; return the start of the rest of the gap [s]."""
    from_s = cut(HAND_OVER, off_s, from_s, until_s, same_s, charges)
    from_s = cut(BUSY_LINK, begin_s, from_s, until_s, same_s, charges)
    return cut(TRANSFER, end_s, from_s, until_s, same_s, charges)


def first_own(rank: int, now_s: float, own_work: OwnTimes) -> int:
    """Return the number of the last hand-over of a rank that begins before a time, or of its first one."""
    first, last = int(own_work.begins[rank]), int(own_work.begins[rank + 1])
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if own_work.starts_s[middle] < now_s:
            low = middle + 1
        else:
            high = middle
    return max(first, low - 1)


def cut_own(
    own: int, last_s: float, rank: int, from_s: float, until_s: float, same_s: float, own_work: OwnTimes,
    charges: Charges,
) -> tuple[int, float]:  # fmt: skip
    """Charge the part of a gap up to `last_s` in which a rank hands over.

    Returns:
        The number of the rank's next hand-over, and the start of the rest of the gap [s].
    """
    while len(own_work.begins) > 0 and own < own_work.begins[rank + 1] and own_work.starts_s[own] < last_s:
        from_s = cut(OVERHEAD, own_work.starts_s[own], from_s, until_s, same_s, charges)
        from_s = cut(HAND_OVER, min(own_work.ends_s[own], last_s), from_s, until_s, same_s, charges)
        own += 1
    return own, from_s


def last_brought(work: int, first: int, rank: int, lists: TimedLists) -> int:
    """Return the last message to arrive from another rank for the ops from `first` to a work, or -1 if none does."""
    begins, codes, stages, microbatches, _, _ = lists.cells
    foreign, num_stages, ends_s = lists.table.other, len(lists.table.receivers) // 2, lists.times.ends_s
    sends, recvs, brought = lists.posts.sends, lists.posts.recvs, -1
    for i in range(first, work + (2 if codes[work] >= OVERLAPPED else 1)):
        code = codes[i] % OVERLAPPED
        if code >= SEND_F:
            continue
        message = foreign[code * num_stages + stages[i]] * lists.num_microbatches + microbatches[i]
        if message < 0 or sends[message] < 0 or not begins[rank] <= recvs[message] < begins[rank + 1]:
            continue
        if brought < 0 or ends_s[recvs[message]] > ends_s[recvs[brought]]:
            brought = message
    return brought


def charge_gap(work: int, rank: int, now_s: float, same_s: float, lists: TimedLists, charges: Charges) -> None:
    """Charge the idle time between two works, up to the second one."""
    begins, codes, _, _, _, _ = lists.cells
    posted_s, starts_s, ends_s = lists.times
    posts, own_work, start_s = lists.posts, lists.own_work, lists.times.starts_s[work]
    own = first_own(rank, now_s, own_work) if len(own_work.begins) > 0 else 0
    first = work
    while first > begins[rank] and not is_busy(first - 1, codes, starts_s, ends_s):
        first -= 1
    for i in range(first, work + 1):
        if i > begins[rank] and SEND_F <= codes[i - 1] <= SEND_B:
            off_s = free_s(i - 1, lists.times, posts)
            if posted_s[i] >= starts_s[i - 1] - same_s and off_s + same_s < posted_s[i]:  # the Send kept its rank
                own, now_s = cut_own(own, posted_s[i - 1], rank, now_s, start_s, same_s, own_work, charges)
                now_s = cut(OVERHEAD, posted_s[i - 1], now_s, start_s, same_s, charges)
                over_s = min(ends_s[i - 1], posted_s[i])
                now_s = cut_message(off_s, starts_s[i - 1], over_s, now_s, start_s, same_s, charges)
        if len(posts.reduces) > 0 and posts.reduces[i] >= 0:
            reduce = posts.reduces[i]
            own, now_s = cut_own(own, posted_s[reduce], rank, now_s, start_s, same_s, own_work, charges)
            now_s = cut(OVERHEAD, posted_s[reduce], now_s, start_s, same_s, charges)
            now_s = cut(COLLECTIVE, ends_s[reduce], now_s, start_s, same_s, charges)
    brought = last_brought(work, first, rank, lists)
    if brought >= 0:
        send, recv = posts.sends[brought], posts.recvs[brought]
        maker, off_s = UPSTREAM if codes[send] == SEND_F else DOWNSTREAM, free_s(send, lists.times, posts)
        now_s = cut(maker, posted_s[send], now_s, start_s, same_s, charges)
        now_s = cut_message(off_s, starts_s[recv], ends_s[recv], now_s, start_s, same_s, charges)
    own, now_s = cut_own(own, start_s, rank, now_s, start_s, same_s, own_work, charges)
    cut(OVERHEAD, start_s, now_s, start_s, same_s, charges)


def charge_end(works: Works, extent: Extent, now_s: float, lists: TimedLists, charges: Charges) -> None:
    """Charge the time behind the last work of a device."""
    _, until_s, same_s = extent
    if until_s <= now_s + same_s:
        add_up(BUSY, until_s - now_s, charges)
        now_s = until_s
    for at in range(len(works.late)):
        i, late_s = works.late[at], works.late_ends_s[at]
        now_s = cut(COOLDOWN, lists.times.posted_s[i], now_s, until_s, same_s, charges)
        if lists.cells.codes[i] == REDUCE:
            now_s = cut(COLLECTIVE, late_s, now_s, until_s, same_s, charges)
        else:
            off_s, begin_s = free_s(i, lists.times, lists.posts), lists.times.starts_s[i]
            now_s = cut_message(off_s, begin_s, late_s, now_s, until_s, same_s, charges)
    cut(COOLDOWN, until_s, now_s, until_s, same_s, charges)


def charge_device(works: Works, extent: Extent, lists: TimedLists, charges: Charges) -> None:
    """Go through the works of a device, and charge the idle time between them.

    Args:
        works: The works of the device.
        extent: The extent of the Timeline.
        lists: The lists of all ranks.
        charges: The charges, to be written.
    """
    now_s, same_s = extent.from_s, extent.same_s
    for index in range(len(works.cells)):
        work = works.cells[index]
        start_s, end_s = lists.times.starts_s[work], lists.times.ends_s[work]
        if start_s > now_s + same_s:
            if index == 0:
                cut(WARMUP, start_s, now_s, start_s, same_s, charges)
            else:
                charge_gap(work, works.ranks[index], now_s, same_s, lists, charges)
            now_s = start_s
        if end_s > now_s:
            add_up(BUSY, end_s - now_s, charges)
            now_s = end_s
    charge_end(works, extent, now_s, lists, charges)


CHARGE_PARTS = (add_up, cut, is_busy, free_s, cut_message, first_own, cut_own, last_brought, charge_gap, charge_end)
"""The functions that the loop calls, for numba."""
