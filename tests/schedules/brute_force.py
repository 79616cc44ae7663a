"""The dependency rule and the rules of channels once more, in plain loops: the truth that others are held to."""

from __future__ import annotations

from collections import Counter

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op, Payload, Recv, Reduce, Send, Step, computes

Thing = tuple[str, int, int]
"""("activation" or "gradient", the stage that makes it, micro-batch)."""


def wanted(op: Op, num_stages: int) -> list[Thing]:
    things: list[Thing] = []
    for part in computes(op):
        letter, k, i = part.phase.value, part.stage, part.microbatch
        if letter == "F" and k > 0:
            things.append(("activation", k - 1, i))
        if letter in "RBI":
            things.append(("activation", k, i))
        if letter in "BI" and k < num_stages - 1:
            things.append(("gradient", k + 1, i))
        if letter == "W":
            things.append(("gradient", k, i))
    return things


def made(op: Op) -> list[Thing]:
    names = {"F": "activation", "B": "gradient", "I": "gradient"}
    return [
        (names[part.phase.value], part.stage, part.microbatch) for part in computes(op) if part.phase.value in names
    ]


def carried(op: Send | Recv) -> Thing:
    name = "activation" if op.message.payload is Payload.ACTIVATION else "gradient"
    return (name, op.message.stage, op.message.microbatch)


def finishes(lowered: Schedule) -> bool:
    """Whether every rank comes to the end of its list, and every Send to its Recv, every Reduce to its others.

    All ranks are asked in turn until none can move.
    """
    at = [0] * lowered.num_ranks
    held: list[set[Thing]] = [set() for _ in lowered.ops]
    posted: dict[tuple[int, int], tuple[list[Thing], list[Thing]]] = {}  # by channel: sends, receives
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(lowered.ops):
            if at[rank] == len(row):
                continue
            op = row[at[rank]]
            if isinstance(op, Step) and min(_counts(lowered, op.stage, at)) < row[: at[rank]].count(Reduce(op.stage)):
                continue
            if any(thing not in held[rank] for thing in wanted(op, lowered.num_stages)):
                continue
            if isinstance(op, Send | Recv):
                sender, receiver = (rank, op.peer) if isinstance(op, Send) else (op.peer, rank)
                ends = posted.setdefault((sender, receiver), ([], []))
                own, others = ends if isinstance(op, Send) else ends[::-1]
                own.append(carried(op))
                if own[-1:] == others[len(own) - 1 : len(own)]:  # the k-th Send meets the k-th Recv of its channel
                    held[receiver].add(carried(op))
            held[rank].update(made(op))
            at[rank] += 1
            moved = True
    unsent = any(len(sends) > len(receives) for sends, receives in posted.values())
    stages = {op.stage for row in lowered.ops for op in row if isinstance(op, Reduce)}
    alone = any(len(set(_counts(lowered, stage, at))) > 1 for stage in stages)
    return not unsent and not alone and all(position == len(row) for position, row in zip(at, lowered.ops, strict=True))


def _counts(lowered: Schedule, stage: int, at: list[int]) -> list[int]:
    """How many Reduces of `stage` each rank that has any has come past; [0] if none has."""
    rows = [(row, n) for row, n in zip(lowered.ops, at, strict=True) if Reduce(stage) in row]
    return [row[:n].count(Reduce(stage)) for row, n in rows] or [0]


def delivers(lowered: Schedule) -> bool:
    """Whether exactly what another rank needs is sent: once, when made, over a channel whose ends agree."""
    sends: dict[tuple[int, int], list[Thing]] = {}
    recvs: dict[tuple[int, int], list[Thing]] = {}
    crossing: Counter[tuple[int, int, Thing]] = Counter()
    for rank, row in enumerate(lowered.ops):
        there: set[Thing] = set()
        for op in row:
            there.update(made(op))
            if isinstance(op, Send):
                if carried(op) not in there:
                    return False
                sends.setdefault((rank, op.peer), []).append(carried(op))
                crossing[rank, op.peer, carried(op)] += 1
            if isinstance(op, Recv):
                recvs.setdefault((op.peer, rank), []).append(carried(op))
    return sends == recvs and crossing == Counter(crossings(lowered))


def crossings(schedule: Schedule) -> list[tuple[int, int, Thing]]:
    """What must travel, as (from rank, to rank, thing): made on one rank, wanted on another one only."""
    makers: dict[Thing, set[int]] = {}
    for rank, row in enumerate(schedule.ops):
        for op in row:
            for thing in made(op):
                makers.setdefault(thing, set()).add(rank)
    journeys = []
    for rank, row in enumerate(schedule.ops):
        things = {thing for op in row for thing in wanted(op, schedule.num_stages)}
        for thing in sorted(things):
            journeys += [(maker, rank, thing) for maker in sorted(makers.get(thing, set())) if maker != rank]
    return journeys
