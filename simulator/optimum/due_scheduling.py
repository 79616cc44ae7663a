"""List scheduling by due dates under memory limits: the innermost loop of the planner, which numba compiles if it can.

Time goes from event to event. A free rank takes the forward or backward that is due first among the ready ones. A
forward may run before ops with earlier due dates if each of these ops still has room in its turn after the forward.
So the remaining ops of a rank always fit in the order of their due dates, and the op that is due first can always
run. No other rank waits for W and Steps: they fill idle time, or make room. The first W of a stage creates its
gradients, so it may have to wait until another op frees memory. If W have due dates too, each W has a place in the
order of due dates: it still fills idle time, and runs in its turn at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_FAR = 1 << 62
DOES_NOT_FIT = _FAR
"""Ticks that mean: these due dates do not fit into memory."""
_NO_DUE = 1e300


class DueArrays(NamedTuple):
    """An order problem as numbers; kind k has index k in all fields by kind.

    Attributes:
        ranks: Rank, by kind.
        ticks: Ticks of an op, by kind.
        firsts: The first micro-batch that has an op, by kind.
        num_waits: Number of ops that an op waits for, by kind.
        waits: The kinds that a kind waits for, concatenated by kind.
        wait_delays: Ticks from the end of the awaited op to the start of the op that waits, parallel to `waits`.
        wait_places: Index in `waits` of the first wait of each kind, then the length of `waits`.
        followers: The kinds that wait for a kind, concatenated by kind.
        delays: Ticks from the end of the awaited op to the start of the follower, parallel to `followers`.
        follower_places: Index in `followers` of the first follower of each kind, then the length of `followers`.
        urgent: Kinds with due dates, concatenated by rank: forwards, backwards, and W if they have due dates.
        urgent_places: Index in `urgent` of the first kind of each rank, then the length of `urgent`.
        others: Kinds without due dates, concatenated by rank.
        other_places: Index in `others` of the first kind of each rank, then the length of `others`.
        is_filling: Whether an op with a due date waits for idle time, by kind.
        peaks: Peak memory of an op, relative to the memory before it, by load (`load_of`).
        insides: Peak memory before the end of an op, without working memory, by load.
        changes: Change of memory by the op, by load.
        lasting: Change of memory by the op and all ops of `others` that can run after it, by load.
        limits: Memory limit, by rank.
        op_places: Index of the first op of each rank among the ops of all ranks, then the number of all ops.
        users: The kind that uses the message that a kind makes, by kind; -1 if it makes none.
        sent: Size of a message on the rank that makes it, by the kind that makes it.
        received: Size of a message on the rank that uses it, by the kind that uses it; 0 on the same rank.
        working: Working memory, by kind.
        is_backward: 1 for a backward, which frees its inputs at its end; 0 for other kinds, which free them at their
            start. A Step that takes no time may follow the last backward.
        begins_with_r: 1 if a kind is a backward with its R, which ends before the backward takes its inputs.
        makers: Kinds whose messages a rank holds, concatenated by rank.
        maker_places: Index in `makers` of the first kind of each rank, then the length of `makers`.
    """

    ranks: Sequence[int]
    ticks: Sequence[int]
    firsts: Sequence[int]
    num_waits: Sequence[int]
    waits: Sequence[int]
    wait_delays: Sequence[int]
    wait_places: Sequence[int]
    followers: Sequence[int]
    delays: Sequence[int]
    follower_places: Sequence[int]
    urgent: Sequence[int]
    urgent_places: Sequence[int]
    others: Sequence[int]
    other_places: Sequence[int]
    is_filling: Sequence[int]
    peaks: Sequence[int]
    insides: Sequence[int]
    changes: Sequence[int]
    lasting: Sequence[int]
    limits: Sequence[int]
    op_places: Sequence[int]
    users: Sequence[int]
    sent: Sequence[int]
    received: Sequence[int]
    working: Sequence[int]
    is_backward: Sequence[int]
    begins_with_r: Sequence[int]
    makers: Sequence[int]
    maker_places: Sequence[int]


class DueState(NamedTuple):
    """The mutable state of scheduling. An op has index kind times micro-batches plus micro-batch.

    Attributes:
        starts: Start of an op, or -1 before it has started, by op.
        ready: Latest arrival of inputs from finished ops, by op.
        missing: Number of unfinished ops that it waits for, by op.
        nexts: The next micro-batch, by kind.
        kinds: The kinds of the ops in list order, concatenated by rank.
        turns: Ops with due dates in their order, concatenated by rank.
        heads: The place of the next op, by rank.
        turn_places: The place in `turns` of the first op that has not run, by rank.
        open_kinds: Number of kinds with due dates that are not over, by rank.
        free: Time at which a rank is free, by rank.
        begins: Start of the first op, by rank.
        looks: Time of the next scheduling decision, by rank.
        held: Memory in use, by rank.
        lasting: Memory in use after all ops of `others` that can run, by rank.
    """

    starts: list[int]
    ready: list[int]
    missing: list[int]
    nexts: list[int]
    kinds: list[int]
    turns: list[int]
    heads: list[int]
    turn_places: list[int]
    open_kinds: list[int]
    free: list[int]
    begins: list[int]
    looks: list[int]
    held: list[int]
    lasting: list[int]


def load_of(kind: int, microbatch: int, num_microbatches: int, num_kinds: int) -> int:
    """Return the index of an op in fields by load: all kinds, then kinds of micro-batch 0, then of the last one.

    The first backward of a stage creates its gradients, and the last one frees them.
    """
    if microbatch == 0:
        return kind + num_kinds
    return kind + 2 * num_kinds if microbatch == num_microbatches - 1 else kind


def fits_by_due(
    arrays: DueArrays, state: DueState, num_microbatches: int, dues: Sequence[float], limit: int, rank: int
) -> bool:
    """Put a rank's turns into the state; return whether the ops fit into `limit` one after the other."""
    begin, end = arrays.urgent_places[rank], arrays.urgent_places[rank + 1]
    held, fits, num_kinds = 0, True, len(arrays.ranks)
    for place in range(begin * num_microbatches, end * num_microbatches):
        first, first_due = -1, _NO_DUE
        for at in range(begin, end):
            kind = arrays.urgent[at]
            if state.nexts[kind] < num_microbatches:
                due = dues[kind * num_microbatches + state.nexts[kind]]
                if due < first_due:
                    first, first_due = kind, due
        state.turns[place] = first * num_microbatches + state.nexts[first]
        load = load_of(first, state.nexts[first], num_microbatches, num_kinds)
        state.nexts[first] += 1
        fits = fits and held + arrays.peaks[load] <= limit
        held += arrays.lasting[load]
    for at in range(begin, end):
        state.nexts[arrays.urgent[at]] = 0
    state.turn_places[rank], state.open_kinds[rank] = begin * num_microbatches, end - begin
    return fits


def begin_scheduling(
    arrays: DueArrays, state: DueState, num_microbatches: int, dues: Sequence[float], limits: Sequence[int]
) -> bool:
    """Put the state before the first op; return whether the order of due dates fits into memory."""
    for kind in range(len(arrays.ranks)):
        state.nexts[kind] = arrays.firsts[kind]
        for microbatch in range(num_microbatches):
            state.ready[kind * num_microbatches + microbatch] = 0
            state.starts[kind * num_microbatches + microbatch] = -1
            state.missing[kind * num_microbatches + microbatch] = arrays.num_waits[kind]
    for rank in range(len(arrays.limits)):
        state.free[rank] = state.held[rank] = state.lasting[rank] = state.looks[rank] = 0
        state.begins[rank], state.heads[rank] = -1, arrays.op_places[rank]
        if not fits_by_due(arrays, state, num_microbatches, dues, limits[rank], rank):
            return False
    return True


def due_choice(
    arrays: DueArrays, state: DueState, num_microbatches: int, limit: int, rank: int, is_strict: bool
) -> tuple[int, bool, int, int]:
    """Choose the kind that is due first among the ready ones of a rank.

    Returns:
        The kind, or -1; whether it has room only after other ops; when the next op becomes ready; and a kind that may
        fill idle time, or -1.
    """
    now, filling, coming = state.looks[rank], -1, _FAR
    lasting, passed, passed_most, num_seen = state.lasting[rank], 0, 0, 0
    place, num_kinds = state.turn_places[rank], len(arrays.ranks)
    while num_seen < state.open_kinds[rank]:
        op = state.turns[place]
        if state.starts[op] >= 0:
            place += 1
            if num_seen == 0:
                state.turn_places[rank] = place
            continue
        kind = op // num_microbatches
        load = load_of(kind, op - kind * num_microbatches, num_microbatches, num_kinds)
        if op == kind * num_microbatches + state.nexts[kind]:
            num_seen += 1
            arrival = state.ready[op] if state.missing[op] == 0 else _FAR
            if arrival > now:
                coming = min(coming, arrival)
            elif lasting + arrays.peaks[load] <= limit and (
                arrays.lasting[load] <= 0 or lasting + arrays.lasting[load] + passed_most <= limit
            ):
                if not arrays.is_filling[kind]:
                    return kind, state.held[rank] + arrays.peaks[load] > limit, coming, filling
                if filling < 0 and state.held[rank] + arrays.peaks[load] <= limit:
                    filling = kind
            if is_strict and not arrays.is_filling[kind]:
                break
        passed_most = max(passed_most, passed + arrays.peaks[load])
        passed += arrays.lasting[load]
        place += 1
    return -1, False, coming, filling


def other_choice(arrays: DueArrays, state: DueState, num_microbatches: int, limit: int, rank: int) -> tuple[int, int]:
    """Return the kind without due dates that has been ready for longest and has room, and since when; -1 without."""
    chosen, oldest = -1, _FAR
    for place in range(arrays.other_places[rank], arrays.other_places[rank + 1]):
        kind = arrays.others[place]
        microbatch = state.nexts[kind]
        index = kind * num_microbatches + microbatch
        load = load_of(kind, microbatch, num_microbatches, len(arrays.ranks))
        if (
            microbatch < num_microbatches
            and state.missing[index] == 0
            and state.ready[index] < oldest
            and state.held[rank] + arrays.peaks[load] <= limit
        ):
            chosen, oldest = kind, state.ready[index]
    return chosen, oldest


def next_kind(
    arrays: DueArrays, state: DueState, num_microbatches: int, limit: int, rank: int, is_patient: bool, is_strict: bool
) -> tuple[int, bool, int]:
    """Return (kind to start now or -1, whether the kind has due dates, time of the rank's next choice)."""
    now = state.looks[rank]
    due, lacks_room, coming, filling = due_choice(arrays, state, num_microbatches, limit, rank, is_strict)
    if due < 0 and filling >= 0 and (not is_patient or now + arrays.ticks[filling] <= coming):
        return filling, True, coming
    if due >= 0 and not lacks_room:
        return due, True, coming
    other, since = other_choice(arrays, state, num_microbatches, limit, rank)
    if since > now or (is_patient and not lacks_room and now + arrays.ticks[other] > coming):
        return -1, False, coming
    return other, False, coming


def start_op(arrays: DueArrays, state: DueState, num_microbatches: int, kind: int, now: int) -> None:
    """Let a rank start the next op of a kind."""
    rank, microbatch, end = arrays.ranks[kind], state.nexts[kind], now + arrays.ticks[kind]
    load = load_of(kind, microbatch, num_microbatches, len(arrays.ranks))
    if state.begins[rank] < 0:
        state.begins[rank] = now
    state.starts[kind * num_microbatches + microbatch] = now
    state.kinds[state.heads[rank]] = kind
    state.nexts[kind] += 1
    state.heads[rank] += 1
    state.held[rank] += arrays.changes[load]
    state.lasting[rank] += arrays.lasting[load]
    state.free[rank] = state.looks[rank] = end
    for place in range(arrays.follower_places[kind], arrays.follower_places[kind + 1]):
        after = arrays.followers[place]
        index = after * num_microbatches + microbatch
        state.missing[index] -= 1
        state.ready[index] = max(state.ready[index], end + arrays.delays[place])
        other = arrays.ranks[after]
        if other != rank:
            state.looks[other] = min(state.looks[other], max(state.ready[index], state.free[other]))


def schedule_by_due(
    arrays: DueArrays,
    state: DueState,
    num_microbatches: int,
    dues: Sequence[float],
    limits: Sequence[int],
    is_patient: bool,
    is_strict: bool,
    is_repeated: bool,
) -> int:
    """Put the starts of all ops into the state, and return the end of the last one [ticks].

    Args:
        arrays: The problem.
        state: The state to fill, with any values.
        num_microbatches: Micro-batches.
        dues: Due dates, in any unit, by op; an op is due later than the ops it waits for.
        limits: Memory limit without messages, by rank.
        is_patient: Whether a rank leaves out a W that would not be over before the next forward or backward comes.
        is_strict: Whether a rank waits for the forward or backward that is due first, so that none passes another.
        is_repeated: Whether the longest time from a rank's first op to its last is returned in place of the end.

    Returns:
        `DOES_NOT_FIT` where the order of due dates does not fit into memory.
    """
    num_ranks = len(arrays.limits)
    if not begin_scheduling(arrays, state, num_microbatches, dues, limits):
        return DOES_NOT_FIT
    left = arrays.op_places[num_ranks]
    while left > 0:
        rank = 0
        for other in range(1, num_ranks):
            if state.looks[other] < state.looks[rank]:
                rank = other
        now = state.looks[rank]
        if now == _FAR:
            return DOES_NOT_FIT
        kind, is_due, coming = next_kind(arrays, state, num_microbatches, limits[rank], rank, is_patient, is_strict)
        if kind < 0:
            state.looks[rank] = coming
            continue
        if is_due and state.nexts[kind] == num_microbatches - 1:
            state.open_kinds[rank] -= 1
        start_op(arrays, state, num_microbatches, kind, now)
        left -= 1
    longest = 0
    for rank in range(num_ranks):
        longest = max(longest, state.free[rank] - (state.begins[rank] if is_repeated else 0))
    return longest


DUE_PARTS = (load_of, fits_by_due, begin_scheduling, due_choice, other_choice, next_kind, start_op)
"""The functions that `schedule_by_due` calls."""
