"""Check that lists and all their messages fit into the memory of the ranks.

    rank 0   F0 ─┐ F1 ── B0        Rank 1 holds the buffer for F0's output from its Recv to the start of its own F0.
    rank 1       └── F0 B0 ..      Rank 0 holds the output until its B0: the gradient shows that rank 1 has used it.

`schedules.lowering` puts the Recv behind the last op of rank 1 that F0 of rank 0 depends on. So memory depends on the
order of the ops. The result is the same as in `simulator.memory`. Memory between two ops counts only if time passes or
a Step runs between them.

The planner calls this loop; numba compiles it if numba is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipesched.simulator.optimum.due_scheduling import DueArrays, load_of


class MessageState(NamedTuple):
    """The mutable state of the check of lists.

    Attributes:
        nexts: The micro-batch that is next, by kind.
        heads: The place that is next, by rank.
        clocks: Number of another rank's ops that are over at a rank's last op, for each pair of ranks.
        told: The clocks of the op that made a message, by op and rank.
        posted: Receive buffers that are allocated before an op, by its place.
        used: Number of messages of a kind known to be used, by the kind that makes them.
        let_go: Number of messages of a kind that their rank has freed, by the kind that makes them.
    """

    nexts: list[int]
    heads: list[int]
    clocks: list[int]
    told: list[int]
    posted: list[int]
    used: list[int]
    let_go: list[int]


def post_messages(  # noqa: C901 -- one loop: calls would cost plain Python more than the work
    arrays: DueArrays, state: MessageState, kinds: Sequence[int], num_microbatches: int
) -> None:
    """Put the sizes of the receive buffers at each place into the state; the lists must be able to run.

    Args:
        arrays: The problem.
        state: Buffers for the check, with any values.
        kinds: The kind of the op at each place, one rank's behind the other's.
        num_microbatches: Micro-batches.
    """
    num_ranks = len(arrays.limits)
    left = arrays.op_places[num_ranks]
    for kind in range(len(arrays.ranks)):
        state.nexts[kind] = arrays.firsts[kind]
    for place in range(left):
        state.posted[place] = 0
    for rank in range(num_ranks):
        state.heads[rank] = arrays.op_places[rank]
        for other in range(num_ranks):
            state.clocks[rank * num_ranks + other] = 0
    rank = 0
    while left > 0:
        own = rank * num_ranks
        while state.heads[rank] < arrays.op_places[rank + 1]:
            kind = kinds[state.heads[rank]]
            microbatch, is_blocked = state.nexts[kind], False
            for arc in range(arrays.wait_places[kind], arrays.wait_places[kind + 1]):
                is_blocked = is_blocked or state.nexts[arrays.waits[arc]] <= microbatch
            if is_blocked:
                break
            for arc in range(arrays.wait_places[kind], arrays.wait_places[kind + 1]):
                before = arrays.waits[arc]
                if arrays.ranks[before] != rank:
                    told = (before * num_microbatches + microbatch) * num_ranks
                    for other in range(num_ranks):
                        state.clocks[own + other] = max(state.clocks[own + other], state.told[told + other])
            state.heads[rank] += 1
            state.clocks[own + rank] = state.heads[rank] - arrays.op_places[rank]
            user = arrays.users[kind]
            if user >= 0 and arrays.ranks[user] != rank:
                receiver, told = arrays.ranks[user], (kind * num_microbatches + microbatch) * num_ranks
                state.posted[arrays.op_places[receiver] + state.clocks[own + receiver]] += arrays.received[user]
                for other in range(num_ranks):
                    state.told[told + other] = state.clocks[own + other]
            state.nexts[kind] += 1
            left -= 1
        rank = (rank + 1) % num_ranks


def let_go_of(
    arrays: DueArrays,
    state: MessageState,
    starts: Sequence[int],
    num_microbatches: int,
    rank: int,
    peer: int,
    sent: int,
) -> int:
    """Return the memory of sent messages that `rank` can free when it gets a message from `peer`.

    The op that made the message started at `sent` [ticks]. Messages leave in order: if the peer has used a message by
    then, all earlier messages of the rank to the peer have left too.
    """
    last, size = -1, 0
    for at in range(arrays.maker_places[rank], arrays.maker_places[rank + 1]):
        maker = arrays.makers[at]
        user = arrays.users[maker]
        if arrays.ranks[user] == peer:
            while state.used[maker] < num_microbatches and starts[user * num_microbatches + state.used[maker]] <= sent:
                state.used[maker] += 1
            if state.used[maker] > 0:
                last = max(last, starts[maker * num_microbatches + state.used[maker] - 1])
    for at in range(arrays.maker_places[rank], arrays.maker_places[rank + 1]):
        maker = arrays.makers[at]
        if arrays.ranks[arrays.users[maker]] == peer:
            count = state.let_go[maker]
            while count < num_microbatches and starts[maker * num_microbatches + count] <= last:
                count += 1
            size += (count - state.let_go[maker]) * arrays.sent[maker]
            state.let_go[maker] = count
    return size


def messages_fit(  # noqa: C901 -- likewise
    arrays: DueArrays,
    state: MessageState,
    kinds: Sequence[int],
    starts: Sequence[int],
    num_microbatches: int,
) -> bool:
    """Return whether all ranks have room for lists that can be worked through, whose ops have these starts."""
    post_messages(arrays, state, kinds, num_microbatches)
    num_kinds = len(arrays.ranks)
    for kind in range(num_kinds):
        state.nexts[kind], state.used[kind], state.let_go[kind] = arrays.firsts[kind], 0, 0
    for rank in range(len(arrays.limits)):
        held, end, until_step = 0, 0, 0
        for place in range(arrays.op_places[rank], arrays.op_places[rank + 1]):
            kind = kinds[place]
            microbatch = state.nexts[kind]
            start = starts[kind * num_microbatches + microbatch]
            held += state.posted[place]
            if held + until_step > arrays.limits[rank] and (start > end or until_step > 0):
                return False
            load = load_of(kind, microbatch, num_microbatches, num_kinds)
            if arrays.begins_with_r[kind] > 0 and held + arrays.insides[load] > arrays.limits[rank]:
                return False
            used = arrays.received[kind]
            for at in range(arrays.maker_places[rank], arrays.maker_places[rank + 1]):
                used += arrays.sent[arrays.makers[at]] if arrays.users[arrays.makers[at]] == kind else 0
            for arc in range(arrays.wait_places[kind], arrays.wait_places[kind + 1]):
                before = arrays.waits[arc]
                if arrays.ranks[before] != rank:
                    pair = rank, arrays.ranks[before], starts[before * num_microbatches + microbatch]
                    held -= let_go_of(arrays, state, starts, num_microbatches, *pair)
            if arrays.is_backward[kind] == 0:
                held -= used
            if held + arrays.insides[load] + arrays.working[kind] > arrays.limits[rank]:
                return False
            held += arrays.changes[load] + arrays.sent[kind]
            if arrays.is_backward[kind] > 0:
                held -= used
            state.nexts[kind] += 1
            end = start + arrays.ticks[kind]
            is_last = arrays.is_backward[kind] > 0 and microbatch == num_microbatches - 1
            until_step = arrays.changes[kind] - arrays.changes[load] if is_last else 0
        if held + until_step > arrays.limits[rank]:
            return False
    return True


MESSAGE_PARTS = (load_of, post_messages, let_go_of)
"""The functions that `messages_fit` calls."""
