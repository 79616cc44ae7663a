"""List scheduling by due dates under memory limits: the innermost loop of the planner, which numba compiles if it can.

Time goes from event to event. A rank that is free takes, of the forwards and backwards that have all they need, the
one that is due first. A forward may pass others that are due before it, if after it there is room for each of them in
its turn. So what is left of a rank's ops always fits in the order of their due dates, and the op that is due first of
all can always go on. W and Steps, for which no other rank waits, fill the time in which there is nothing else, or
make room; the first W of a stage, which leaves its gradients, may have to wait for others that do. Where W have due
dates, too, each has a place in that order, and fills time all the same, or is done in its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_FAR = 1 << 62
DOES_NOT_FIT = _FAR
"""Ticks that mean: these due dates do not fit into memory."""
_NO_DUE = 1e300


class DueArrays(NamedTuple):
    """An order problem as numbers; a kind with a number k has the place k in all that is by kind.

    Attributes:
        ranks: Rank, by kind.
        ticks: Ticks of an op, by kind.
        firsts: The first micro-batch that has an op, by kind.
        num_waits: How many others an op waits for, by kind.
        waits: The kinds that one waits for, one kind's behind the other's.
        wait_delays: The ticks between, in step with `waits`.
        wait_places: Where those of a kind begin, and where the last ones end.
        followers: The kinds that wait for one, one kind's behind the other's.
        delays: The ticks between, in step with `followers`.
        follower_places: Where a kind's followers begin, and where the last ones end.
        urgent: Forwards and backwards, which have due dates, one rank's behind the other's; W, too, where they have.
        urgent_places: Where a rank's begin, and where the last ones end.
        others: What has no due date, likewise.
        other_places: Where a rank's begin, and where the last ones end.
        is_filling: Whether an op with a due date waits for time in which there is nothing else, by kind.
        peaks: What an op holds beside what was held before, at most, by load (`load_of`).
        insides: The same before its end, but for what it works in, likewise.
        changes: What it leaves, likewise.
        lasting: What it leaves when all of `others` that it allows have been done, likewise.
        limits: The most that a rank may hold, by rank.
        op_places: Where the ops of a rank begin, and where the last ones end, one rank's behind the other's.
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


class DueState(NamedTuple):
    """What changes while ops are scheduled; what is by op has kind times micro-batches plus micro-batch as its place.

    Attributes:
        starts: When an op starts, by op; -1: it has not.
        ready: When it has what it needs of those that are over, by op.
        missing: How many others it still waits for, by op.
        nexts: The micro-batch that is next, by kind.
        kinds: The kinds of the ops in the order of the lists, one rank's behind the other's.
        turns: Ops that have due dates, in their order, one rank's behind the other's.
        heads: The place of the op that is next, by rank.
        turn_places: The first of them that has not been done, by rank.
        open_kinds: How many kinds of them are not over, by rank.
        free: When a rank is free, by rank.
        begins: When it has begun, by rank.
        looks: When it is looked at next, by rank.
        held: What it holds, by rank.
        lasting: What it holds when all of `others` that can be done have been done, by rank.
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
    """Return the place of an op in what is by load: by kind, then those of micro-batch 0, then those of the last one.

    The first backward leaves the gradients of its stage, and with the last one they go.
    """
    if microbatch == 0:
        return kind + num_kinds
    return kind + 2 * num_kinds if microbatch == num_microbatches - 1 else kind


def fits_by_due(
    arrays: DueArrays, state: DueState, num_microbatches: int, dues: Sequence[float], limit: int, rank: int
) -> bool:
    """Put a rank's turns into the state, and return whether they fit into so much memory one after the other."""
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


def schedule_by_due(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
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
        state: Of any values.
        num_microbatches: Micro-batches.
        dues: Due dates, in any unit, by op; what waits for another is due later than that.
        limits: The most that a rank is to hold beside its messages, by rank.
        is_patient: Whether a rank leaves out a W that would not be over before the next forward or backward comes.
        is_strict: Whether a rank waits for the forward or backward that is due first, so that none passes another.
        is_repeated: Whether the longest time from a rank's first op to its last is returned in place of the end.

    Returns:
        `DOES_NOT_FIT` where the order of due dates does not fit into memory.
    """
    num_ranks, num_kinds = len(arrays.limits), len(arrays.ranks)
    for kind in range(num_kinds):
        state.nexts[kind] = arrays.firsts[kind]
        for microbatch in range(num_microbatches):
            state.ready[kind * num_microbatches + microbatch] = 0
            state.starts[kind * num_microbatches + microbatch] = -1
            state.missing[kind * num_microbatches + microbatch] = arrays.num_waits[kind]
    for rank in range(num_ranks):
        state.free[rank] = state.held[rank] = state.lasting[rank] = state.looks[rank] = 0
        state.begins[rank], state.heads[rank] = -1, arrays.op_places[rank]
        if not fits_by_due(arrays, state, num_microbatches, dues, limits[rank], rank):
            return DOES_NOT_FIT
    left = 0
    for kind in range(num_kinds):
        left += num_microbatches - arrays.firsts[kind]
    while left > 0:
        now, rank = state.looks[0], 0
        for other in range(1, num_ranks):
            if state.looks[other] < now:
                now, rank = state.looks[other], other
        if now == _FAR:
            return DOES_NOT_FIT
        limit, chosen, lacks_room, coming, filling = limits[rank], -1, False, _FAR, -1
        lasting, passed, passed_most, num_seen = state.lasting[rank], 0, 0, 0
        place = state.turn_places[rank]
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
                        chosen, lacks_room = kind, state.held[rank] + arrays.peaks[load] > limit
                        break
                    if filling < 0 and state.held[rank] + arrays.peaks[load] <= limit:
                        filling = kind
                if is_strict and not arrays.is_filling[kind]:
                    break
            passed_most = max(passed_most, passed + arrays.peaks[load])
            passed += arrays.lasting[load]
            place += 1
        if chosen < 0 and filling >= 0 and (not is_patient or now + arrays.ticks[filling] <= coming):
            chosen, lacks_room = filling, False
        candidate = chosen
        if chosen < 0 or lacks_room:
            chosen, oldest = -1, _FAR
            for place in range(arrays.other_places[rank], arrays.other_places[rank + 1]):
                kind = arrays.others[place]
                microbatch = state.nexts[kind]
                index = kind * num_microbatches + microbatch
                load = load_of(kind, microbatch, num_microbatches, num_kinds)
                if (
                    microbatch < num_microbatches
                    and state.missing[index] == 0
                    and state.ready[index] < oldest
                    and state.held[rank] + arrays.peaks[load] <= limit
                ):
                    chosen, oldest = kind, state.ready[index]
            if chosen >= 0:
                is_early = lacks_room or not is_patient or now + arrays.ticks[chosen] <= coming
                if oldest > now or not is_early:
                    chosen = -1
        if chosen < 0:
            state.looks[rank] = coming
            continue
        microbatch, end = state.nexts[chosen], now + arrays.ticks[chosen]
        load = load_of(chosen, microbatch, num_microbatches, num_kinds)
        if state.begins[rank] < 0:
            state.begins[rank] = now
        state.starts[chosen * num_microbatches + microbatch] = now
        state.kinds[state.heads[rank]] = chosen
        state.nexts[chosen] += 1
        state.heads[rank] += 1
        if chosen == candidate and microbatch == num_microbatches - 1:
            state.open_kinds[rank] -= 1
        left -= 1
        state.held[rank] += arrays.changes[load]
        state.lasting[rank] += arrays.lasting[load]
        state.free[rank] = state.looks[rank] = end
        for place in range(arrays.follower_places[chosen], arrays.follower_places[chosen + 1]):
            after = arrays.followers[place]
            index = after * num_microbatches + microbatch
            state.missing[index] -= 1
            state.ready[index] = max(state.ready[index], end + arrays.delays[place])
            other = arrays.ranks[after]
            if other != rank:
                state.looks[other] = min(state.looks[other], max(state.ready[index], state.free[other]))
    longest = 0
    for rank in range(num_ranks):
        longest = max(longest, state.free[rank] - (state.begins[rank] if is_repeated else 0))
    return longest


DUE_PARTS = (load_of, fits_by_due)
"""What scheduling calls."""
