"""The lowering of PyTorch's pipeline runtime, under which it computes the right gradients on any backend.

    rank 0  0F0 0B0  ->  0UNSHARD 0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD 0RESHARD
    rank 1  1F0 1B0  ->  1UNSHARD 1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD 1RESHARD

The order of messages: `lowering.insertion` needs one communicator per direction, as in our executor. PyTorch has one
for both directions, where the k-th post of one side must meet the k-th of the other. So the ranks take turns, with an
op per turn, and a message's Send and Recv are inserted in the same turn: all lists follow one order of all messages.

Sharded weights (FSDP) are gathered before their stage computes and dropped when other stages come first; whole
weights need neither UNSHARD nor RESHARD. Gradients are divided by the number of micro-batches at REDUCE_GRAD
alone: without one they come out too large by that factor.

The places are the same as in `_add_unshard_reshard`, `_add_reduce_grad` and `_add_send_recv` of PyTorch 2.13. Files of
2.9 and older have no REDUCE_GRAD.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipesched.schedules import Schedule
from pipesched.schedules.lowering.insertion import lower
from pipesched.schedules.ops import (
    ENDS_MICROBATCH,
    Message,
    Op,
    Payload,
    Recv,
    Reduce,
    Reshard,
    Send,
    Unshard,
    awaits_sum,
    computes,
    gives,
    needs,
)

MAX_GATHERED = 3
"""Stages of a rank whose weights are gathered at the same time: one forward, one backward, one to come."""


def lower_for_torch(schedule: Schedule) -> Schedule:
    """Return `schedule` with all ops of PyTorch's runtime; lists with messages keep them.

    Raises:
        ScheduleError: The lists cannot finish.
    """
    if schedule.is_lowered:
        return replace(schedule, lists=tuple(tuple(_reduced(row)) for row in schedule.ops))
    lower(schedule)  # refuses lists that cannot finish, and says why
    rows: Sequence[Sequence[Op]] = schedule.ops
    if not any(isinstance(op, Unshard | Reshard) for row in rows for op in row):
        rows = [_gathered(row) for row in rows]
    return replace(schedule, lists=_with_messages([_reduced(row) for row in rows], schedule), is_lowered=True)


def _gathered(row: Sequence[Op]) -> list[Op]:
    """Return `row` with Unshard and Reshard: gathered are the stages that compute next, the soonest first."""
    wanted = _next_stages(row)
    ready: list[int] = []
    result: list[Op] = []
    for op, soon in zip(row, wanted, strict=True):
        if computes(op):
            result += [Reshard(stage) for stage in ready if stage not in soon]
            result += [Unshard(stage) for stage in soon if stage not in ready]
            ready = sorted(soon)
        result.append(op)
    return result + [Reshard(stage) for stage in ready]


def _next_stages(row: Sequence[Op]) -> list[list[int]]:
    """Return, for each place of `row`, the first `MAX_GATHERED` stages that compute there or later."""
    coming: list[int] = []
    result = []
    for op in reversed(row):
        own = [part.stage for part in computes(op)]
        coming = [*dict.fromkeys(own), *(stage for stage in coming if stage not in own)]
        result.append(coming[:MAX_GATHERED])
    return result[::-1]


def _reduced(row: Sequence[Op]) -> list[Op]:
    """Return `row` with a Reduce after the backwards of each stage that has none."""
    reduced = {op.stage for op in row if isinstance(op, Reduce) and not op.is_over_stages}
    last = {stage: index for index, op in enumerate(row) for stage in _backwards(op) if stage not in reduced}
    after: defaultdict[int, list[Op]] = defaultdict(list)
    for stage, index in last.items():
        after[index].append(Reduce(stage))
    return [word for index, op in enumerate(row) for word in (op, *after.get(index, ()))]


def _backwards(op: Op) -> list[int]:
    """Return the stages of the weight gradients that `op` adds to, or of the input gradient that it sends."""
    if isinstance(op, Send) and op.message.payload is Payload.GRADIENT:
        return [op.message.stage]
    return [part.stage for part in computes(op) if part.phase in ENDS_MICROBATCH]


def _with_messages(rows: Sequence[Sequence[Op]], schedule: Schedule) -> tuple[tuple[Op, ...], ...]:
    """Return `rows` with a Send after each maker of a message, and its Recv at the current end of the receiver's list.

    The ranks take turns, one op each. PyTorch has no word for the optimizer's Steps and the sums over stages before
    them, so they take no turn. A Reduce is one turn of all replicas. If replicas have their Reduces in different
    orders, each Reduce takes a turn of its own, and the checker finds the deadlock.
    """
    route, replicas = schedule.routes(), _replicas(schedule)
    lists: list[list[Op]] = [[] for _ in rows]
    arrived: list[set[Message]] = [set() for _ in rows]
    left = [list(reversed(row)) for row in rows]
    while num_left := sum(map(len, left)):
        for rank, rest in enumerate(left):
            while rest and awaits_sum(rest[-1]):
                lists[rank].append(rest.pop())
            if not rest or not arrived[rank].issuperset(_needed(rest[-1], schedule.num_stages)):
                continue
            op = rest[-1]
            members = replicas.get(op, [rank])
            if any(left[member][-1:] != [op] for member in members):
                continue
            for member in members:
                lists[member].append(left[member].pop())
            for message in filter(None, map(gives, computes(op))):
                peer = route.get((message.receiver, message.microbatch), rank)
                arrived[rank].add(message)
                if peer != rank:
                    lists[rank].append(Send(message, peer))
                    lists[peer].append(Recv(message, rank))
                    arrived[peer].add(message)
        if sum(map(len, left)) == num_left:
            assert replicas, "lists that finish always have an op whose messages are there"
            replicas = {}
    return tuple(map(tuple, lists))


def _replicas(schedule: Schedule) -> dict[Op, list[int]]:
    """Return the ranks of each Reduce of `schedule` itself; inserted ones do not meet in the pipeline."""
    ranks_of: defaultdict[Op, list[int]] = defaultdict(list)
    for rank, row in enumerate(schedule.ops):
        for op in dict.fromkeys(op for op in row if isinstance(op, Reduce)):
            ranks_of[op].append(rank)
    return dict(ranks_of)


def _needed(op: Op, num_stages: int) -> list[Message]:
    return [message for part in computes(op) for message in needs(part, num_stages)]
