"""Is a reported deadlock true? Every link is looked up in the lists once more, by counting, without the checker."""

from __future__ import annotations

from itertools import pairwise

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op, Recv, Reduce, Send, Step, computes
from pipesched.schedules.semantics.deadlock import Deadlock, Missing, WaitingOp
from tests.schedules.brute_force import Thing, carried, made, wanted
from tests.schedules.state_exploration import Model, batches, stream


def assert_true(schedule: Schedule, deadlock: Deadlock, communication: str, model: Model) -> None:
    """Each link must wait for the next one, none of them is ever over, and it closes, or ends at a gap."""
    state = model.end()
    for link in deadlock.links:
        assert link.op == schedule.ops[link.rank][link.index]
        assert not model.is_over((link.rank, link.index), state) or is_crossed(schedule, link)
    assert len({(link.rank, link.index) for link in deadlock.links}) == len(deadlock.links)
    links = deadlock.links if deadlock.missing is not None else (*deadlock.links, deadlock.links[0])
    for link, following in pairwise(links):
        assert waits(schedule, link, following, communication), (link, following)
    if deadlock.missing is not None:
        assert is_missing(schedule, deadlock.links[-1], deadlock.missing), (deadlock.links[-1], deadlock.missing)


def waits(schedule: Schedule, link: WaitingOp, other: WaitingOp, communication: str) -> bool:
    """Whether `link` cannot be over before `other` is, or before `other` has begun where they are two ends."""
    link_op, other_op = link.op, other.op
    is_same_rank = link.rank == other.rank
    are_posts = isinstance(link_op, Send | Recv) and isinstance(other_op, Send | Recv)
    match link.why.name:
        case "NEEDS":
            if isinstance(link_op, Step):
                return is_same_rank and other.index < link.index and other_op == Reduce(link_op.stage)
            things = wanted(link_op, schedule.num_stages)
            brought = [carried(other_op)] if isinstance(other_op, Recv) else made(other_op)
            return (is_same_rank or not schedule.is_lowered) and bool(set(things) & set(brought))
        case "AFTER":
            return is_same_rank and other.index < link.index and not isinstance(other_op, Send | Recv | Reduce)
        case "MEETS":
            return are_posts and end_of(link.rank, link_op) == other_end_of(other.rank, other_op) and (
                number_of(schedule, link) == number_of(schedule, other)
            )  # fmt: skip
        case "BEHIND" if isinstance(link_op, Reduce):
            are_ordered = communication not in ("buffered", "channel")
            return are_ordered and is_same_rank and other.index < link.index and isinstance(other_op, Reduce)
        case "BEHIND":
            run = next(run for run in batches(schedule.ops[link.rank], communication) if link.index in run)
            return are_posts and is_same_rank and other.index < min(run) and (
                stream(link.rank, link_op, communication) == stream(other.rank, other_op, communication)
            )  # fmt: skip
        case "WITH":
            runs = batches(schedule.ops[link.rank], communication)
            return is_same_rank and any({link.index, other.index} <= set(run) for run in runs)
        case "REPLICAS":
            return (
                link_op == other_op
                and not is_same_rank
                and reduces_before(schedule, link) == reduces_before(schedule, other)
            )
    raise AssertionError(link.why)


def is_missing(schedule: Schedule, link: WaitingOp, missing: Missing) -> bool:
    """Whether what `link` waits for is nowhere, or elsewhere than it must be."""
    op = link.op
    if isinstance(op, Send | Recv):
        assert missing.rank == op.peer
        assert missing.op == str(Recv(op.message, link.rank) if isinstance(op, Send) else Send(op.message, link.rank))
        return counterpart(schedule, link) is None or is_crossed(schedule, link)
    if isinstance(op, Reduce):
        assert missing.op == str(op)
        row = schedule.ops[missing.rank]
        return op in row and row.count(op) <= reduces_before(schedule, link)
    things = wanted(op, schedule.num_stages)
    if missing.rank is None:
        return any(named(thing) == missing.op and not makers(schedule, thing) for thing in things)
    if "RECV" in missing.op:
        own = [(part.stage, part.microbatch) for part in computes(op)]
        absent = [thing for thing in things if thing[1:] not in own and not brings(schedule, link.rank, thing)]
        return missing.rank == link.rank and missing.op in [received(thing) for thing in absent]
    return missing.rank == link.rank and any(
        named(thing) == missing.op and makers(schedule, thing) and link.rank not in makers(schedule, thing)
        for thing in things
    )


def is_crossed(schedule: Schedule, link: WaitingOp) -> bool:
    """Whether its counterpart is there, but names another message."""
    other = counterpart(schedule, link)
    return other is not None and carried(other) != carried(link.op)


def counterpart(schedule: Schedule, link: WaitingOp) -> Op | None:
    if not isinstance(link.op, Send | Recv) or not 0 <= link.op.peer < schedule.num_ranks:
        return None
    peer = link.op.peer
    ends = [op for op in schedule.ops[peer] if isinstance(op, Send | Recv)]
    ends = [op for op in ends if other_end_of(peer, op) == end_of(link.rank, link.op)]
    number = number_of(schedule, link)
    return ends[number] if number < len(ends) else None


def end_of(rank: int, op: Send | Recv) -> tuple[str, int, int]:
    """Return "send" or "recv", sender and receiver."""
    return ("send", rank, op.peer) if isinstance(op, Send) else ("recv", op.peer, rank)


def other_end_of(rank: int, op: Send | Recv) -> tuple[str, int, int]:
    return ("recv", rank, op.peer) if isinstance(op, Send) else ("send", op.peer, rank)


def number_of(schedule: Schedule, link: WaitingOp) -> int:
    """Return how many Sends, or Recvs, of the same channel come before."""
    before = schedule.ops[link.rank][: link.index]
    return sum(type(op) is type(link.op) and op.peer == link.op.peer for op in before)


def reduces_before(schedule: Schedule, link: WaitingOp) -> int:
    return schedule.ops[link.rank][: link.index].count(link.op)


def makers(schedule: Schedule, thing: Thing) -> list[int]:
    return [rank for rank, row in enumerate(schedule.ops) if any(thing in made(op) for op in row)]


def brings(schedule: Schedule, rank: int, thing: Thing) -> bool:
    return any(thing in made(op) or (isinstance(op, Recv) and carried(op) == thing) for op in schedule.ops[rank])


def named(thing: Thing) -> str:
    return f"{thing[1]}{'F' if thing[0] == 'activation' else 'B'}{thing[2]}"


def received(thing: Thing) -> str:
    step, letter = (1, "F") if thing[0] == "activation" else (-1, "B")
    return f"{thing[1] + step}RECV_{letter}{thing[2]}"
