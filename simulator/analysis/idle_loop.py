"""The idle time of a device charged to its causes, as a loop over numbers: for lists, and for NumPy's arrays compiled.

`simulator.analysis.idle_time` defines the causes.
"""

from __future__ import annotations

from typing import Any

from pipesched.schedules.columns import op_cells

WARMUP, UPSTREAM, DOWNSTREAM, BUSY_LINK, TRANSFER, HAND_OVER, COLLECTIVE, OVERHEAD, COOLDOWN, BUSY = range(10)
"""The causes, in the order of their names; and BUSY, the time in which the device works."""

SEND_F, SEND_B, RECV_F = op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F
REDUCE, STEP, RESHARD, OVERLAPPED = op_cells.REDUCE, op_cells.STEP, op_cells.RESHARD, op_cells.OVERLAPPED


def add_up(row: int, seconds: float, sums: Any, rests: Any) -> None:
    """Add seconds to a sum, with the rounding error in another sum (Neumaier, 1974)."""
    before = sums[row]
    after = before + seconds
    rests[row] += (before - after) + seconds if abs(before) >= abs(seconds) else (seconds - after) + before
    sums[row] = after


def cut(
    cause: int, cut_s: float, from_s: float, until_s: float, same_s: float,
    sums: Any, rests: Any, causes: Any, begins_s: Any, ends_s: Any, count: Any,
) -> float:  # fmt: skip
    """Charge the part of a gap before a cut to a cause; return the start of the rest of the gap [s]."""
    end_s = cut_s if cut_s < until_s - same_s else until_s
    if end_s <= from_s + same_s:
        return from_s
    add_up(cause, end_s - from_s, sums, rests)
    if count[0] < len(causes):
        causes[count[0]], begins_s[count[0]], ends_s[count[0]] = cause, from_s, end_s
        count[0] += 1
    return end_s


def is_busy(cell: int, codes: Any, starts_s: Any, ends_s: Any) -> bool:
    """Whether a cell is of an op that keeps its device busy for some time."""
    return bool((codes[cell] < SEND_F or codes[cell] > REDUCE) and ends_s[cell] > starts_s[cell])


def find_transfers(
    begins: Any, codes: Any, stages: Any, microbatches: Any, num_stages: int, num_microbatches: int,
    sends: Any, recvs: Any,
) -> None:  # fmt: skip
    """Find the cells where each message is sent and received.

    Args:
        begins: R + 1 indices, and then columns of n cells, as in `OpColumns`.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        num_stages: Number of stages.
        num_microbatches: m.
        sends: Cell of the Send of each activation and gradient of a stage, -1 at first; to be written.
        recvs: Cell of the Recv, in the same way.
    """
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
    works: Any, ranks: Any, late: Any, late_ends_s: Any, from_s: float, until_s: float, same_s: float,
    begins: Any, codes: Any, stages: Any, microbatches: Any, posted_s: Any, starts_s: Any, ends_s: Any,
    foreign: Any, num_stages: int, num_microbatches: int, sends: Any, recvs: Any, reduces: Any, left_s: Any,
    own_begins: Any, own_starts_s: Any, own_ends_s: Any,
    sums: Any, rests: Any, causes: Any, part_begins_s: Any, part_ends_s: Any, count: Any,
) -> None:  # fmt: skip
    """Go through the works of a device, and charge the idle time between them.

    Args:
        works: Cells of its works, in order of their starts.
        ranks: The rank of each.
        late: Cells that its ranks wait for behind their last works, in the order of posting.
        late_ends_s: Until when they wait for each [s].
        from_s: When the Timeline begins [s].
        until_s: When it is over [s].
        same_s: Longest time that is no gap [s].
        begins: R + 1 indices, and then columns of n cells, as in `OpColumns`.
        codes: n codes.
        stages: n stages.
        microbatches: n micro-batches.
        posted_s: When its rank reached the op of each cell [s].
        starts_s: When it began [s].
        ends_s: When it was over [s].
        foreign: Row of the message of another stage that a computation needs, by key, as in `message_table`.
        num_stages: Number of stages.
        num_microbatches: m.
        sends: Cells of Sends, from `find_transfers`.
        recvs: Cells of Recvs.
        reduces: For a cell of a Step the Reduce that it waits for, -1 without one; empty if no Step waits.
        left_s: For a cell of a Send the time when its rank is free of it [s]; empty if at once.
        own_begins: R + 1 indices: where the hand-overs of each rank begin in the next two; empty without hand-overs.
        own_starts_s: When each begins [s], ascending.
        own_ends_s: When each is over [s].
        sums: 10 sums of seconds, one of each cause and of busy time; zeros at first, to be written.
        rests: Their rounding errors.
        causes: Causes of the parts of the idle time, to be written as far as there is room.
        part_begins_s: When each begins [s].
        part_ends_s: When each is over [s].
        count: Number of parts written.
    """
    gap = sums, rests, causes, part_begins_s, part_ends_s, count
    now_s = from_s
    has_own = len(own_begins) > 0
    for index in range(len(works) + 1):
        is_last = index == len(works)
        if is_last:
            if until_s <= now_s + same_s:
                add_up(BUSY, until_s - now_s, sums, rests)
                now_s = until_s
            for at in range(len(late)):
                i = late[at]
                now_s = cut(COOLDOWN, posted_s[i], now_s, until_s, same_s, *gap)
                if codes[i] == REDUCE:
                    now_s = cut(COLLECTIVE, late_ends_s[at], now_s, until_s, same_s, *gap)
                    continue
                now_s = cut(HAND_OVER, left_s[i] if len(left_s) else posted_s[i], now_s, until_s, same_s, *gap)
                now_s = cut(BUSY_LINK, starts_s[i], now_s, until_s, same_s, *gap)
                now_s = cut(TRANSFER, late_ends_s[at], now_s, until_s, same_s, *gap)
            cut(COOLDOWN, until_s, now_s, until_s, same_s, *gap)
            return
        work, rank = works[index], ranks[index]
        start_s, end_s = starts_s[work], ends_s[work]
        if start_s > now_s + same_s:
            if index == 0:
                cut(WARMUP, start_s, now_s, start_s, same_s, *gap)
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
                    awaited = -1  # the Send or Reduce that the rank waited for, and until when
                    awaited_s = 0.0
                    for turn in range(2):
                        awaited = -1
                        if turn == 0 and i > begins[rank] and SEND_F <= codes[i - 1] <= SEND_B:
                            off_s = left_s[i - 1] if len(left_s) else posted_s[i - 1]
                            if posted_s[i] >= starts_s[i - 1] - same_s and off_s + same_s < posted_s[i]:
                                awaited, awaited_s = i - 1, min(ends_s[i - 1], posted_s[i])
                        elif turn == 1 and codes[i] == STEP and len(reduces) and reduces[i] >= 0:
                            awaited, awaited_s = reduces[i], ends_s[reduces[i]]
                        if awaited < 0:
                            continue
                        while own < last_own and own_starts_s[own] < posted_s[awaited]:
                            now_s = cut(OVERHEAD, own_starts_s[own], now_s, start_s, same_s, *gap)
                            handed_s = min(own_ends_s[own], posted_s[awaited])
                            now_s = cut(HAND_OVER, handed_s, now_s, start_s, same_s, *gap)
                            own += 1
                        now_s = cut(OVERHEAD, posted_s[awaited], now_s, start_s, same_s, *gap)
                        if turn == 1:
                            now_s = cut(COLLECTIVE, awaited_s, now_s, start_s, same_s, *gap)
                            continue
                        off_s = left_s[awaited] if len(left_s) else posted_s[awaited]
                        now_s = cut(HAND_OVER, off_s, now_s, start_s, same_s, *gap)
                        now_s = cut(BUSY_LINK, starts_s[awaited], now_s, start_s, same_s, *gap)
                        now_s = cut(TRANSFER, awaited_s, now_s, start_s, same_s, *gap)
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
                    now_s = cut(maker, posted_s[send], now_s, start_s, same_s, *gap)
                    now_s = cut(HAND_OVER, off_s, now_s, start_s, same_s, *gap)
                    now_s = cut(BUSY_LINK, starts_s[recv], now_s, start_s, same_s, *gap)
                    now_s = cut(TRANSFER, ends_s[recv], now_s, start_s, same_s, *gap)
                while own < last_own and own_starts_s[own] < start_s:
                    now_s = cut(OVERHEAD, own_starts_s[own], now_s, start_s, same_s, *gap)
                    now_s = cut(HAND_OVER, min(own_ends_s[own], start_s), now_s, start_s, same_s, *gap)
                    own += 1
                cut(OVERHEAD, start_s, now_s, start_s, same_s, *gap)
            now_s = start_s
        if end_s > now_s:
            add_up(BUSY, end_s - now_s, sums, rests)
            now_s = end_s


CHARGE_PARTS = add_up, cut, is_busy
"""The functions that the loop calls, for numba."""
