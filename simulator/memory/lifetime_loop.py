"""The lifetimes of bytes from columns of ops, as a loop over numbers: `simulator.memory.lifetimes` defines them.

The same loop runs over lists in plain Python and over NumPy arrays in machine code.
"""

from __future__ import annotations

from typing import NamedTuple

from pipesched.schedules.columns import Cells, Int8s, Int32s, op_cells

F, B, I, W, R, LATE_R, SEND_F, SEND_B, RECV_F, RECV_B, STEP, AVERAGE, RESHARD, OVERLAPPED = (  # noqa: E741
    op_cells.F, op_cells.B, op_cells.I, op_cells.W, op_cells.R, op_cells.LATE_R, op_cells.SEND_F, op_cells.SEND_B,
    op_cells.RECV_F, op_cells.RECV_B, op_cells.STEP, op_cells.AVERAGE, op_cells.RESHARD, op_cells.OVERLAPPED,
)  # fmt: skip

(
    INPUT, SAVED, SAVED_FOR_WEIGHT, WORKING, WEIGHTS, OPTIMIZER, UPDATES, VERSION, GRADIENTS, RECEIVED, SENT,
    SENT_SAVED, PASSED, PASSED_SAVED, RECEIVED_GRADIENT, SENT_GRADIENT, PASSED_GRADIENT,
) = range(17)  # fmt: skip
"""Numbers of the parts of a stage's bytes: see `lifetimes.Part`."""

POOLED, AT_USE, PER_MICROBATCH, ACTIVATIONS = range(4)
"""How receive buffers are allocated, in the order of `network_options.Buffers`; activations alone, without buffers."""

POSTED, START, END, OVER = range(4)
"""The points of a cell: its rank reaches it, its op starts, ends, and drops its predicted copy of the weights."""

ALWAYS, NEVER = -2, -1
"""The point before all others, and the point after all others; point p of cell c is 4 c + p."""


class Lifetimes(NamedTuple):
    """The bytes that ranks hold, and from when to when; a row for each lifetime, all ranks one after the other.

    Attributes:
        begins: R + 1 indices: where the rows of each rank begin, and their number.
        parts: Part of the bytes, by row.
        stages: Stage of the bytes, by row.
        since: Point from which on they are held, by row.
        until: Point up to which they are held, by row; if it is not after `since`, they are not held at all.
    """

    begins: Int32s
    parts: Int8s
    stages: Int32s
    since: Int32s
    until: Int32s


class KnownCells(NamedTuple):
    """Cells by their role, -1 at first; below the first cell of the current rank: this rank has no such cell.

    Attributes:
        made: Cell that makes a message, by message.
        used: Cell that uses a message, by message.
        received: Cell of the Recv, by message.
        rebuilt: Cell of R, by micro-batch of a stage.
        weights: Cell of W, by micro-batch of a stage.
    """

    made: Int32s
    used: Int32s
    received: Int32s
    rebuilt: Int32s
    weights: Int32s


class KnownPosts(NamedTuple):
    """The Sends and Recvs, by cell.

    Attributes:
        peers: Number of the peer of its rank (`KnownPeers`).
        links: For a Send, the next Send to the same peer; for a Recv, its Send; -1 at first.
        counts: For a Recv, the number of earlier Recvs from the peer; for a Send, the number of the peer's messages
            that the rank has used.
        freed: Cell at whose start the message of a Send is freed; -1 at first.
    """

    peers: Int32s
    links: Int32s
    counts: Int32s
    freed: Int32s


class KnownPeers(NamedTuple):
    """The peers of all ranks, with their messages so far: `schedules.semantics.acknowledgements` proves their use.

    Peer n is another rank of some rank, and peer n ^ 1 is that rank, seen from the other one.

    Attributes:
        firsts: First peer, by rank; -1 at first.
        ranks: Rank of the peer.
        following: Next peer of the same rank; -1 behind the last.
        sent: First Send to the peer that is not yet matched with its Recv; -1 at first.
        last_sent: Last Send to the peer; -1 at first.
        unfreed: First Send to the peer whose message is not yet freed; -1 at first.
        received: Recvs from the peer; zeros at first, as the next two.
        used: Messages of the peer that the rank has used.
        freed: Messages to the peer that the rank has freed.
    """

    firsts: Int32s
    ranks: Int32s
    following: Int32s
    sent: Int32s
    last_sent: Int32s
    unfreed: Int32s
    received: Int32s
    used: Int32s
    freed: Int32s


class KnownStages(NamedTuple):
    """The state of the stages of the current rank; -1 at first.

    Attributes:
        ranks: Last rank seen with a stage, by stage.
        opened: Row of the gradients that wait for a Step, by stage; -1 without.
        stepped: Number of Steps of its rank so far, by stage.
        averaged: Last rank seen that averages a stage, by stage.
        last_read: Last cell that reads a version, by stage and version.
    """

    ranks: Int32s
    opened: Int32s
    stepped: Int32s
    averaged: Int32s
    last_read: Int32s


class LifetimeLists(NamedTuple):
    """The lists, and the kind of their receive buffers.

    Attributes:
        cells: The lists, lowered.
        others: Row of the message of another stage that a computation needs, by key of `MessageTable`.
        made: Row of the message that it makes, by key.
        num_stages: S.
        num_microbatches: m.
        num_versions: Number of versions of weights.
        mode: `POOLED`, `AT_USE`, `PER_MICROBATCH` or `ACTIVATIONS`.
    """

    cells: Cells
    others: Int32s
    made: Int32s
    num_stages: int
    num_microbatches: int
    num_versions: int
    mode: int


def count_used(lists: LifetimeLists, known: KnownCells, posts: KnownPosts, peers: KnownPeers) -> None:
    """Find the peers of all ranks, and count the messages of a peer that a rank has used at each Send to it."""
    begins, codes, stages, microbatches, others, _ = lists.cells
    foreign, num_stages, num_microbatches = lists.others, lists.num_stages, lists.num_microbatches
    received, (peer_at, links, counts, _) = known.received, posts
    first_peers, peer_ranks, next_peers, sent, last_sent, unfreed, num_received, num_used, _ = peers
    gradients, num_peers = num_stages * num_microbatches, 0
    for rank in range(len(begins) - 1):
        first = begins[rank]
        for i in range(first, begins[rank + 1]):
            code, stage = codes[i] % OVERLAPPED, stages[i]
            if SEND_F <= code <= RECV_B:
                peer = first_peers[rank]
                while peer >= 0 and peer_ranks[peer] != others[i]:
                    peer = next_peers[peer]
                if peer < 0:
                    peer, num_peers = num_peers, num_peers + 2
                    peer_ranks[peer], next_peers[peer], first_peers[rank] = others[i], first_peers[rank], peer
                    peer_ranks[peer + 1], next_peers[peer + 1] = rank, first_peers[others[i]]
                    first_peers[others[i]] = peer + 1
                peer_at[i] = peer
                if code <= SEND_B:
                    counts[i] = num_used[peer]
                    if last_sent[peer] < 0:
                        sent[peer] = unfreed[peer] = i
                    else:
                        links[last_sent[peer]] = i
                    last_sent[peer] = i
                else:
                    received[(0 if code == RECV_F else gradients) + stage * num_microbatches + microbatches[i]] = i
                    counts[i] = num_received[peer]
                    num_received[peer] += 1
            elif code < SEND_F:
                message = foreign[code * num_stages + stage] * num_microbatches + microbatches[i]
                if message >= 0 and received[message] >= first:
                    peer = peer_at[received[message]]
                    num_used[peer] = max(num_used[peer], counts[received[message]] + 1)


def find_cells(  # noqa: C901 -- one loop: calls with arrays cost machine code more than the work
    lists: LifetimeLists, known: KnownCells, posts: KnownPosts, peers: KnownPeers, last_read: Int32s, rank: int
) -> None:
    """Find the cells of a rank by their roles, and the cells at which the messages that it sends are freed."""
    begins, codes, stages, microbatches, others, _ = lists.cells
    foreign, mades, num_stages = lists.others, lists.made, lists.num_stages
    num_microbatches, num_versions, has_all = lists.num_microbatches, lists.num_versions, lists.mode != ACTIVATIONS
    made_at, used_at, received, rebuilt_at, weight_at = known
    peer_at, links, counts, freed_at = posts
    sent, unfreed, num_freed = peers.sent, peers.unfreed, peers.freed
    gradients, first, last = num_stages * num_microbatches, begins[rank], begins[rank + 1]
    for i in range(first, last):
        code, stage = codes[i] % OVERLAPPED, stages[i]
        own = stage * num_microbatches + microbatches[i]
        if code < SEND_F:
            made = mades[code * num_stages + stage]
            if made >= 0:
                made_at[made * num_microbatches + microbatches[i]] = i
            elif code in (R, LATE_R):
                rebuilt_at[own] = i
            else:
                weight_at[own] = i
            if not has_all:
                continue
            last_read[stage * num_versions + others[i]] = i
            message = foreign[code * num_stages + stage] * num_microbatches + microbatches[i]
            if message >= 0:
                used_at[message] = i
                answer = received[message]
                if first <= answer < last and links[answer] >= 0:
                    peer, count = peer_at[answer], counts[links[answer]]
                    while num_freed[peer] < count:
                        freed_at[unfreed[peer]] = i
                        unfreed[peer] = links[unfreed[peer]]
                        num_freed[peer] += 1
        elif has_all and RECV_F <= code <= RECV_B:
            received[own if code == RECV_F else gradients + own] = i
            peer = peer_at[i] ^ 1
            links[i] = sent[peer]
            if sent[peer] >= 0:
                sent[peer] = links[sent[peer]]
        elif code > RESHARD:
            raise ValueError("op code: got an unknown code; add it to `find_lifetimes`")


def hold(rows: Lifetimes, row: int, part: int, stage: int, since: int, until: int) -> int:
    """Write a lifetime, and return the next row."""
    rows.parts[row], rows.stages[row], rows.since[row], rows.until[row] = part, stage, since, until
    return row + 1


def write_computations(  # noqa: C901 -- as above
    lists: LifetimeLists, known: KnownCells, known_stages: KnownStages, rank: int, rows: Lifetimes, row: int
) -> int:
    """Write the lifetimes that computations of a rank begin, from `row` on; return the next row."""
    begins, codes, stages, microbatches, others, lookaheads = lists.cells
    foreign, num_stages, num_microbatches = lists.others, lists.num_stages, lists.num_microbatches
    made_at, _, received, rebuilt_at, weight_at = known
    is_here, opened, stepped, _, _ = known_stages
    first, last = begins[rank], begins[rank + 1]
    mode, gradients = lists.mode, num_stages * num_microbatches
    for i in range(first, last):
        code, stage = codes[i] % OVERLAPPED, stages[i]
        if code == F:
            own = stage * num_microbatches + microbatches[i]
            since, again, back = 4 * i + START, rebuilt_at[own], made_at[gradients + own]
            if again >= first:
                row = hold(rows, row, INPUT, stage, since, 4 * again + START)
                since = 4 * again + START
            until = 4 * back + END if back >= first else NEVER
            row = hold(rows, row, SAVED, stage, since, until)
            if back >= first and codes[back] % OVERLAPPED == I:
                over = 4 * weight_at[own] + END if weight_at[own] >= first else NEVER
                row = hold(rows, row, SAVED_FOR_WEIGHT, stage, until, over)
        if mode == ACTIVATIONS or code >= SEND_F:
            continue
        if is_here[stage] != rank:
            is_here[stage], opened[stage], stepped[stage] = rank, -1, 0
            row = hold(rows, row, WEIGHTS, stage, ALWAYS, NEVER)
            row = hold(rows, row, OPTIMIZER, stage, ALWAYS, NEVER)
        if code in (B, I):
            row = hold(rows, row, WORKING, stage, 4 * i + START, 4 * i + END)
        if len(lookaheads) > 0 and lookaheads[i] > 0 and others[i] > 0:
            row = hold(rows, row, VERSION, stage, 4 * i + START, 4 * i + OVER)
        needed = foreign[code * num_stages + stage]
        if needed < 0 or code == LATE_R:  # its backward frees the gradient
            continue
        message = needed * num_microbatches + microbatches[i]
        stage = needed if needed < num_stages else needed - num_stages - 1
        if mode == PER_MICROBATCH:
            row = hold(rows, row, RECEIVED if code == F else RECEIVED_GRADIENT, stage, ALWAYS, NEVER)
        elif made_at[message] >= first and not first <= received[message] < last:
            part = PASSED_GRADIENT
            if code == F:
                part = PASSED_SAVED if rebuilt_at[message] < first else PASSED
            row = hold(rows, row, part, stage, 4 * made_at[message] + END, 4 * i + (START if code == F else OVER))
    return row


def write_others(  # noqa: C901 -- as above
    lists: LifetimeLists,
    known: KnownCells,
    freed_at: Int32s,
    known_stages: KnownStages,
    rank: int,
    rows: Lifetimes,
    row: int,
) -> int:
    """Write the lifetimes of a rank's gradients, messages, updates and replaced weights; return the next row."""
    begins, codes, stages, microbatches, _, _ = lists.cells
    num_microbatches, num_versions, mode = lists.num_microbatches, lists.num_versions, lists.mode
    made_at, used_at, _, rebuilt_at, _ = known
    is_here, opened, stepped, is_averaged, last_read = known_stages
    first, gradients = begins[rank], lists.num_stages * num_microbatches
    for i in range(first, begins[rank + 1]):
        code, stage = codes[i] % OVERLAPPED, stages[i]
        part, since, until = -1, 0, NEVER
        if code < SEND_F:
            if code in (B, W) and opened[stage] < 0:
                opened[stage] = row
                part, since = GRADIENTS, 4 * i + END
        elif code <= SEND_B:
            own = stage * num_microbatches + microbatches[i]
            message, stage = (own, stage) if code == SEND_F else (gradients + own, stage - 1)
            maker = made_at[message]
            part = SENT if code == SEND_F else SENT_GRADIENT
            if code == SEND_F and maker >= first and rebuilt_at[own] < first:
                part = SENT_SAVED
            since = 4 * maker + END if maker >= first else 4 * i + POSTED
            if mode == PER_MICROBATCH:
                until = 4 * i + END
            elif freed_at[i] >= 0:
                until = 4 * freed_at[i] + START
        elif code <= RECV_B and mode != PER_MICROBATCH:
            own = stage * num_microbatches + microbatches[i]
            user = used_at[own if code == RECV_F else gradients + own]
            part, stage = (RECEIVED, stage) if code == RECV_F else (RECEIVED_GRADIENT, stage - 1)
            since = 4 * i + POSTED
            if user >= first:
                until = 4 * user + (START if code == RECV_F else OVER)
                reader = rebuilt_at[own - num_microbatches] if code == RECV_B else -1
                if reader < first or codes[reader] % OVERLAPPED != LATE_R:
                    reader = user
                since = 4 * reader + START if mode == AT_USE else since
        elif code == STEP and is_here[stage] == rank:
            if opened[stage] >= 0:
                rows.until[opened[stage]] = 4 * i + END
                opened[stage] = -1
            reader = last_read[stage * num_versions + stepped[stage]] if stepped[stage] < num_versions else -1
            stepped[stage] += 1
            if reader > i:
                part, since, until = VERSION, 4 * i + START, 4 * reader + END
        elif code == AVERAGE and is_averaged[stage] != rank:
            is_averaged[stage] = rank
            part, since = UPDATES, ALWAYS
        if part >= 0:
            row = hold(rows, row, part, stage, since, until)
    return row


def find_lifetimes(
    lists: LifetimeLists,
    known: KnownCells,
    posts: KnownPosts,
    peers: KnownPeers,
    known_stages: KnownStages,
    rows: Lifetimes,
) -> None:
    """Write the lifetimes of all ranks.

    Args:
        lists: The lists.
        known: Known cells.
        posts: Known Sends and Recvs; empty for activations alone, as the next two.
        peers: Known peers.
        known_stages: State of the stages.
        rows: The lifetimes, to be written.
    """
    row, has_all = 0, lists.mode != ACTIVATIONS
    if has_all:
        count_used(lists, known, posts, peers)
    for rank in range(len(rows.begins) - 1):
        rows.begins[rank] = row
        find_cells(lists, known, posts, peers, known_stages.last_read, rank)
        row = write_computations(lists, known, known_stages, rank, rows, row)
        if has_all:
            row = write_others(lists, known, posts.freed, known_stages, rank, rows, row)
    rows.begins[len(rows.begins) - 1] = row


LIFETIME_PARTS = (hold, count_used, find_cells, write_computations, write_others)
"""The functions that `find_lifetimes` calls, once for all ranks, or once for each."""
