"""Simulated annealing of an order: the innermost loop of the planner's second part, which numba compiles if it can.

    rank 0   F0 F1 F2 .. .. B0 F3            the critical path: each op of it begins when the one before it ends
    rank 1   .. F0 F1 B0 F2 .. B1            here F0 F0 F1 B0 F2, so F1 and B0 may change places, or B0 and F2

A move can shorten the whole only if it swaps two ops that follow one another on a rank on the critical path (van
Laarhoven, Aarts and Lenstra, Operations Research 1992). A move takes one op past the other, or past a few more. It must
fit into the memory of the rank, and no rank may wait for itself. A longer order is kept by chance, ever more rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from pipesched.simulator.optimum.due_scheduling import DOES_NOT_FIT, DueArrays, load_of
from pipesched.simulator.optimum.message_room import MESSAGE_PARTS, MessageState, messages_fit

_FARTHEST = 4
"""The most ops that one is moved past."""


class OrderState(NamedTuple):
    """Orders of all ranks, with their times; places are the places of ops, concatenated by rank.

    Attributes:
        kinds: The kind of the op at each place; the micro-batches of a kind come in their order.
        causes: The reason for the start of the op at each place: the place before, for the op before it on its rank;
            -2 - p, for an op at place p that it waits for; -1 without reason.
        places: Place, by op.
        starts: When an op starts, by op.
        best: Place in the best order, by op.
        critical: Places whose op begins after the one before it on its rank, on the critical path.
        nexts: The micro-batch that is next, by kind.
        heads: The place that is next, by rank.
        free: When a rank is free, by rank.
        blocked: The op that a rank waits for, by rank; -1 if it does not wait.
        awake: Ranks that do not wait, as a stack.
    """

    kinds: list[int]
    causes: list[int]
    places: list[int]
    starts: list[int]
    best: list[int]
    critical: list[int]
    nexts: list[int]
    heads: list[int]
    free: list[int]
    blocked: list[int]
    awake: list[int]


def ordered_ticks(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    arrays: DueArrays, state: OrderState, num_microbatches: int
) -> int:
    """Put the starts of all ops and their causes into the state, and return the end of the last one [ticks].

    Returns:
        `DOES_NOT_FIT` where ranks wait for each other in a circle.
    """
    num_ranks, num_awake = len(arrays.limits), len(arrays.limits)
    for kind in range(len(arrays.ranks)):
        state.nexts[kind] = arrays.firsts[kind]
    for rank in range(num_ranks):
        state.heads[rank], state.free[rank], state.blocked[rank] = arrays.op_places[rank], 0, -1
        state.awake[rank] = num_ranks - 1 - rank
    while num_awake > 0:
        num_awake -= 1
        rank = state.awake[num_awake]
        while state.heads[rank] < arrays.op_places[rank + 1]:
            place = state.heads[rank]
            kind = state.kinds[place]
            microbatch = state.nexts[kind]
            start, cause = state.free[rank], place - 1 if place > arrays.op_places[rank] else -1
            for arc in range(arrays.wait_places[kind], arrays.wait_places[kind + 1]):
                before = arrays.waits[arc]
                op = before * num_microbatches + microbatch
                if state.nexts[before] <= microbatch:
                    state.blocked[rank] = op
                    break
                ready = state.starts[op] + arrays.ticks[before] + arrays.wait_delays[arc]
                if ready > start or (ready == start and state.places[op] == place - 1):
                    start, cause = ready, -2 - state.places[op]
            if state.blocked[rank] >= 0:
                break
            op = kind * num_microbatches + microbatch
            state.starts[op], state.places[op], state.causes[place] = start, place, cause
            state.free[rank] = start + arrays.ticks[kind]
            state.nexts[kind] += 1
            state.heads[rank] += 1
            for arc in range(arrays.follower_places[kind], arrays.follower_places[kind + 1]):
                other = arrays.ranks[arrays.followers[arc]]
                if state.blocked[other] == op:
                    state.blocked[other] = -1
                    state.awake[num_awake] = other
                    num_awake += 1
    end = 0
    for rank in range(num_ranks):
        if state.heads[rank] < arrays.op_places[rank + 1]:
            return DOES_NOT_FIT
        end = max(end, state.free[rank])
    return end


def critical_places(arrays: DueArrays, state: OrderState, end: int, first: int) -> int:
    """Put the critical places into the state, and return their number.

    Args:
        arrays: The problem.
        state: Orders that have been worked through.
        end: The end of the last op [ticks].
        first: If several ranks end last, take the path of this rank, or of the nearest rank before it.
    """
    num_ranks, place, count = len(arrays.limits), -1, 0
    for turn in range(num_ranks):
        rank = (first + 1 + turn) % num_ranks
        if state.free[rank] == end:
            place = arrays.op_places[rank + 1] - 1
    while place >= 0:
        cause = state.causes[place]
        if cause < -1:
            place = -2 - cause
        else:
            if cause >= 0:
                state.critical[count] = place
                count += 1
            place = cause
    return count


def move_op(state: OrderState, source: int, target: int) -> None:
    """Move an op to another place in the order of its rank."""
    kind, step = state.kinds[source], 1 if target > source else -1
    for place in range(source, target, step):
        state.kinds[place] = state.kinds[place + step]
    state.kinds[target] = kind


def fits_until(arrays: DueArrays, state: OrderState, num_microbatches: int, rank: int, last: int) -> bool:
    """Return whether a rank has room for its ops up to a place, without messages."""
    held, num_kinds, begin = 0, len(arrays.ranks), arrays.op_places[rank]
    for place in range(begin, last + 1):
        state.nexts[state.kinds[place]] = arrays.firsts[state.kinds[place]]
    for place in range(begin, last + 1):
        kind = state.kinds[place]
        load = load_of(kind, state.nexts[kind], num_microbatches, num_kinds)
        if held + arrays.peaks[load] > arrays.limits[rank]:
            return False
        held += arrays.changes[load]
        state.nexts[kind] += 1
    return True


def drawn_move(
    ranks: Sequence[int],
    op_places: Sequence[int],
    kinds: list[int],
    critical: list[int],
    num_critical: int,
    critical_share: float,
    seed: int,
) -> tuple[int, int, int]:
    """Return a random move, from a place of a rank to another of its places, and the last random number.

    Args:
        ranks: As in `DueArrays`, like the next one.
        op_places: Where the ops of a rank begin.
        kinds: As in `OrderState`, like the next one.
        critical: Critical places.
        num_critical: Number of critical places.
        critical_share: Share of the moves that is on the critical path.
        seed: The random number before.
    """
    seed = (seed * 1103515245 + 12345) % 2147483648
    chance = (seed >> 8) / 8388608.0
    seed = (seed * 1103515245 + 12345) % 2147483648
    if num_critical > 0 and chance < critical_share:
        source = critical[(seed >> 8) % num_critical]
    else:
        source = (seed >> 8) % len(kinds)
    rank = ranks[kinds[source]]
    seed = (seed * 1103515245 + 12345) % 2147483648
    reach = 1 + (seed >> 9) % _FARTHEST
    reach = reach if (seed >> 12) % 2 > 0 else 1
    if (seed >> 8) % 2 > 0:
        return source, max(op_places[rank], source - reach), seed
    source = max(op_places[rank], source - 1)
    return source, min(op_places[rank + 1] - 1, source + reach), seed


def anneal_order(
    arrays: DueArrays,
    state: OrderState,
    message_state: MessageState,
    num_microbatches: int,
    num_tries: int,
    warmth: float,
    critical_share: float,
    least: int,
    seed: int,
) -> int:
    """Put the starts of the best order that is found into the state, and return the end of its last op [ticks].

    Args:
        arrays: The problem.
        state: Orders that can run and fit; the other fields may have any values.
        message_state: Buffers for the check of messages, with any values.
        num_microbatches: Micro-batches.
        num_tries: Moves to try.
        warmth: Extra length of an order that is first kept with probability 1 / e [ticks].
        critical_share: Share of the moves that is on the critical path; the rest is anywhere, which makes room.
        least: Lower bound: stop at an order of this length [ticks].
        seed: Seed of the random numbers.
    """
    current = fewest = ordered_ticks(arrays, state, num_microbatches)
    for op in range(len(state.starts)):
        state.best[op] = state.starts[op]
    num_critical = critical_places(arrays, state, current, 0)
    for count in range(num_tries):
        if fewest <= least:
            break
        source, target, seed = drawn_move(
            arrays.ranks, arrays.op_places, state.kinds, state.critical, num_critical, critical_share, seed
        )
        if state.kinds[source] == state.kinds[target] and abs(source - target) < 2:
            continue
        move_op(state, source, target)
        ticks = DOES_NOT_FIT
        rank = arrays.ranks[state.kinds[target]]
        if fits_until(arrays, state, num_microbatches, rank, max(source, target)):
            ticks = ordered_ticks(arrays, state, num_microbatches)
        seed = (seed * 1103515245 + 12345) % 2147483648
        heat = warmth * (num_tries - count) / num_tries
        is_kept = ticks <= current or (ticks < DOES_NOT_FIT and (seed >> 8) / 8388608.0 < exp((current - ticks) / heat))
        if is_kept and len(arrays.makers) > 0:
            is_kept = messages_fit(arrays, message_state, state.kinds, state.starts, num_microbatches)
        if is_kept:
            current = ticks
            num_critical = critical_places(arrays, state, current, (seed >> 9) % len(arrays.limits))
            if ticks < fewest:
                fewest = ticks
                for op in range(len(state.starts)):
                    state.best[op] = state.starts[op]
        else:
            move_op(state, target, source)
    return fewest


ANNEALING_PARTS = (ordered_ticks, critical_places, move_op, fits_until, drawn_move, *MESSAGE_PARTS, messages_fit)
"""The functions that `anneal_order` calls."""


def order_state(arrays: DueArrays, starts: Sequence[int], num_microbatches: int) -> OrderState:
    """Return the orders of all ranks in which ops have these starts, which are by op [ticks]."""
    ops = sorted(
        (rank, starts[kind * num_microbatches + k], starts[kind * num_microbatches + k] + arrays.ticks[kind], k, kind)
        for kind, rank in enumerate(arrays.ranks)
        for k in range(arrays.firsts[kind], num_microbatches)
    )
    num_places, num_ops, num_kinds, num_ranks = len(ops), len(starts), len(arrays.ranks), len(arrays.limits)
    counts = (num_places, num_ops, num_ops, num_ops, num_places, num_kinds, *(num_ranks,) * 4)
    return OrderState([kind for *_, kind in ops], *([0] * count for count in counts))
