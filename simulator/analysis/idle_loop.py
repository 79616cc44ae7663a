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
        late_ends_s: Until when they wait for each [s].
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
        reduces: For a cell of a Step the Reduce that it waits for, of a computation the Unshard, -1 without one; empty
            if none waits.
        left_s: For a cell of a Send the time when its rank is free of it [s]; empty if at once.
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
            raise ValueError("op code: got an unknown code; add it to `find_transfers` and `charge_device`")
        if SEND_F <= codes[i] < REDUCE:
            is_activation = codes[i] in (SEND_F, RECV_F)
            message = ((0 if is_activation else num_stages) + stages[i]) * num_microbatches + microbatches[i]
            if codes[i] <= SEND_B:
                sends[message] = i
            else:
                recvs[message] = i


def charge_device(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    works: Works, extent: Extent, cells: Cells, times: SpanTimes, table: MessageTable, num_microbatches: int,
    posts: Posts, own_work: OwnTimes, charges: Charges,
) -> None:  # fmt: skip
    """Go through the works of a device, and charge the idle time between them.

    Args:
        works: The works of the device.
        extent: The extent of the Timeline.
        cells: The lists.
        times: The times of their cells.
        table: Messages of the computations.
        num_microbatches: m.
        posts: The posts that ranks wait for.
        own_work: Hand-overs of the ranks.
        charges: The charges, to be written.
    """
    work_cells, ranks, late, late_ends_s = works
    from_s, until_s, same_s = extent
    begins, codes, stages, microbatches, _, _ = cells
    posted_s, starts_s, ends_s = times
    foreign, num_stages = table.other, len(table.receivers) // 2
    sends, recvs, reduces, left_s = posts
    own_begins, own_starts_s, own_ends_s = own_work
    now_s = from_s
    has_own = len(own_begins) > 0
    for index in range(len(work_cells) + 1):
        is_last = index == len(work_cells)
        if is_last:
            if until_s <= now_s + same_s:
                add_up(BUSY, until_s - now_s, charges)
                now_s = until_s
            for at in range(len(late)):
                i = late[at]
                now_s = cut(COOLDOWN, posted_s[i], now_s, until_s, same_s, charges)
                if codes[i] == REDUCE:
                    now_s = cut(COLLECTIVE, late_ends_s[at], now_s, until_s, same_s, charges)
                    continue
                now_s = cut(HAND_OVER, left_s[i] if len(left_s) else posted_s[i], now_s, until_s, same_s, charges)
                now_s = cut(BUSY_LINK, starts_s[i], now_s, until_s, same_s, charges)
                now_s = cut(TRANSFER, late_ends_s[at], now_s, until_s, same_s, charges)
            cut(COOLDOWN, until_s, now_s, until_s, same_s, charges)
            return
        work, rank = work_cells[index], ranks[index]
        start_s, end_s = starts_s[work], ends_s[work]
        if start_s > now_s + same_s:
            if index == 0:
                cut(WARMUP, start_s, now_s, start_s, same_s, charges)
            else:
                own, last_own = 0, 0
                if has_own:
                    own, last_own = own_begins[rank], own_begins[rank + 1]
                    low, high = own, last_own
                    while low < high:
                        middle = (low + high) // 2
                        if own_starts_s[middle] < now_s:
                            low = middle + 1
                        else:
                            high = middle
                    own = max(own, low - 1)
                first = work
                while first > begins[rank] and not is_busy(first - 1, codes, starts_s, ends_s):
                    first -= 1
                brought = -1
                for i in range(first, work + 1):
                    awaited = -1  # the Send, Reduce or Unshard that the rank waited for, and until when
                    awaited_s = 0.0
                    for turn in range(2):
                        awaited = -1
                        if turn == 0 and i > begins[rank] and SEND_F <= codes[i - 1] <= SEND_B:
                            off_s = left_s[i - 1] if len(left_s) else posted_s[i - 1]
                            if posted_s[i] >= starts_s[i - 1] - same_s and off_s + same_s < posted_s[i]:
                                awaited, awaited_s = i - 1, min(ends_s[i - 1], posted_s[i])
                        elif turn == 1 and len(reduces) and reduces[i] >= 0:
                            awaited, awaited_s = reduces[i], ends_s[reduces[i]]
                        if awaited < 0:
                            continue
                        while own < last_own and own_starts_s[own] < posted_s[awaited]:
                            now_s = cut(OVERHEAD, own_starts_s[own], now_s, start_s, same_s, charges)
                            handed_s = min(own_ends_s[own], posted_s[awaited])
                            now_s = cut(HAND_OVER, handed_s, now_s, start_s, same_s, charges)
                            own += 1
                        now_s = cut(OVERHEAD, posted_s[awaited], now_s, start_s, same_s, charges)
                        if turn == 1:
                            now_s = cut(COLLECTIVE, awaited_s, now_s, start_s, same_s, charges)
                            continue
                        off_s = left_s[awaited] if len(left_s) else posted_s[awaited]
                        now_s = cut(HAND_OVER, off_s, now_s, start_s, same_s, charges)
                        now_s = cut(BUSY_LINK, starts_s[awaited], now_s, start_s, same_s, charges)
                        now_s = cut(TRANSFER, awaited_s, now_s, start_s, same_s, charges)
                for i in range(first, work + (2 if codes[work] >= OVERLAPPED else 1)):
                    code = codes[i] % OVERLAPPED
                    if code >= SEND_F:
                        continue
                    message = foreign[code * num_stages + stages[i]] * num_microbatches + microbatches[i]
                    if message < 0 or sends[message] < 0 or not begins[rank] <= recvs[message] < begins[rank + 1]:
                        continue
                    if brought < 0 or ends_s[recvs[message]] > ends_s[recvs[brought]]:
                        brought = message
                if brought >= 0:
                    send, recv = sends[brought], recvs[brought]
                    maker = UPSTREAM if codes[send] == SEND_F else DOWNSTREAM
                    off_s = left_s[send] if len(left_s) else posted_s[send]
                    now_s = cut(maker, posted_s[send], now_s, start_s, same_s, charges)
                    now_s = cut(HAND_OVER, off_s, now_s, start_s, same_s, charges)
                    now_s = cut(BUSY_LINK, starts_s[recv], now_s, start_s, same_s, charges)
                    now_s = cut(TRANSFER, ends_s[recv], now_s, start_s, same_s, charges)
                while own < last_own and own_starts_s[own] < start_s:
                    now_s = cut(OVERHEAD, own_starts_s[own], now_s, start_s, same_s, charges)
                    now_s = cut(HAND_OVER, min(own_ends_s[own], start_s), now_s, start_s, same_s, charges)
                    own += 1
                cut(OVERHEAD, start_s, now_s, start_s, same_s, charges)
            now_s = start_s
        if end_s > now_s:
            add_up(BUSY, end_s - now_s, charges)
            now_s = end_s


CHARGE_PARTS = add_up, cut, is_busy
"""The functions that the loop calls, for numba."""
