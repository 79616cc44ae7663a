"""Can these lists run? Found without running anything, each finding with rank, op and place.

Complete: every stage computes F and B (or I and W) once for every micro-batch, B where F was. Versions: an op reads
weights that exist when it runs. Matched: every message is sent once, after it is made and to the rank that uses it,
and on every channel the k-th Send and the k-th Recv name the same message.
Progress: no rank waits forever.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from schedules.op import (
    Average,
    Message,
    Op,
    Payload,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    computes,
    gives,
)
from schedules.progress import Blocked, progress
from schedules.schedule import Schedule, ScheduleError, routes, stages_of


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        kind: ``structure``, ``version``, ``matching`` or ``progress``.
        rank: Where; None for what is missing everywhere.
        index: Position in the rank's list, from 0; None when the fault has no single place.
        text: What was got and what was expected.
    """

    kind: str
    rank: int | None
    index: int | None
    text: str

    def __str__(self) -> str:
        place = "" if self.rank is None else f"rank {self.rank}" + ("" if self.index is None else f" op {self.index}")
        return f"{place}: {self.text}" if place else self.text


def check(schedule: Schedule) -> tuple[Finding, ...]:
    """Return every fault of `schedule`, lowered or not; none means that it runs to its end."""
    findings = [*_structure(schedule), *_versions(schedule), *_matching(schedule)]
    return (*findings, *_progress(schedule))


def require_runnable(schedule: Schedule) -> None:
    """Refuse a schedule that `check` finds fault with.

    Raises:
        ScheduleError: With the first findings, in one line.
    """
    findings = check(schedule)
    if findings:
        shown = "; ".join(str(finding) for finding in findings[:3])
        more = f"; and {len(findings) - 3} more" if len(findings) > 3 else ""
        raise ScheduleError(f"{schedule.name}: {shown}{more}")


def _structure(schedule: Schedule) -> Iterator[Finding]:
    """Every op once; the backward on the rank of its forward; R between them."""
    places: defaultdict[tuple[int, int], dict[Phase, tuple[int, int]]] = defaultdict(dict)
    for rank, row in enumerate(schedule.ops):
        for index, op in enumerate(row):
            for part in computes(op):
                if not 0 <= part.stage < schedule.num_stages or not 0 <= part.microbatch < schedule.num_microbatches:
                    yield Finding(
                        "structure", rank, index,
                        f"{part} is outside of {schedule.num_stages} stages and "
                        f"{schedule.num_microbatches} micro-batches",
                    )  # fmt: skip
                    continue
                seen = places[part.stage, part.microbatch]
                if part.phase in seen:
                    where = "rank {} op {}".format(*seen[part.phase])
                    yield Finding("structure", rank, index, f"{part} is there twice, first at {where}")
                seen.setdefault(part.phase, (rank, index))
        own = stages_of(row)
        for index, op in enumerate(row):
            if isinstance(op, Step | Reduce | Average | Unshard | Reshard) and op.stage not in own:
                yield Finding("structure", rank, index, f"{op} is of a stage that this rank does not compute")
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            yield from _complete(stage, microbatch, places.get((stage, microbatch), {}))


def _complete(stage: int, microbatch: int, seen: dict[Phase, tuple[int, int]]) -> Iterator[Finding]:
    """What one stage does with one micro-batch: F, then B or I and W."""
    split = {Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT}
    expected = {Phase.FORWARD} | (split if split & seen.keys() else {Phase.BACKWARD})
    home = seen.get(Phase.FORWARD)
    for phase in sorted(expected - seen.keys()):
        yield Finding("structure", None if home is None else home[0], None, f"{stage}{phase}{microbatch} is missing")
    if split & seen.keys() and Phase.BACKWARD in seen:
        yield Finding(
            "structure",
            *seen[Phase.BACKWARD],
            f"{stage}B{microbatch} is there beside I or W, expected one of them",
        )
    for phase, (rank, index) in seen.items():
        if home is not None and rank != home[0]:
            yield Finding(
                "structure", rank, index,
                f"{stage}{phase}{microbatch} is here, expected on rank {home[0]} where its forward is",
            )  # fmt: skip
    if Phase.RECOMPUTE in seen:
        user = seen.get(Phase.BACKWARD, seen.get(Phase.BACKWARD_INPUT))
        if user is not None and user[0] == seen[Phase.RECOMPUTE][0] and user[1] < seen[Phase.RECOMPUTE][1]:
            yield Finding("structure", *seen[Phase.RECOMPUTE], f"{stage}R{microbatch} comes after its backward")


def _versions(schedule: Schedule) -> Iterator[Finding]:
    """An op may read only versions that its stage has reached."""
    for rank, row in enumerate(schedule.ops):
        steps: Counter[int] = Counter()
        for index, op in enumerate(row):
            if isinstance(op, Step):
                steps[op.stage] += 1
            for part in computes(op):
                if not 0 <= part.version <= steps[part.stage]:
                    yield Finding(
                        "version", rank, index,
                        f"{part} reads version {part.version}, but {steps[part.stage]} steps of stage "
                        f"{part.stage} come before it",
                    )  # fmt: skip


def _matching(schedule: Schedule) -> Iterator[Finding]:
    """On each channel the k-th Send and the k-th Recv are one message."""
    if not schedule.is_lowered:
        return
    sends, recvs = _posts(schedule, Send), _posts(schedule, Recv)
    for channel in sorted(sends.keys() | recvs.keys()):
        sender, receiver = channel
        if not 0 <= sender < schedule.num_ranks or not 0 <= receiver < schedule.num_ranks:
            index, op = (sends.get(channel) or recvs[channel])[0]
            rank = sender if channel in sends else receiver
            yield Finding("matching", rank, index, f"{op} names a peer outside of {schedule.num_ranks} ranks")
            continue
        yield from _compare(channel, sends.get(channel, []), recvs.get(channel, []))
    yield from _addresses(schedule)


def _addresses(schedule: Schedule) -> Iterator[Finding]:
    """Each message is sent once, after it is made, to the rank that uses it."""
    route = routes(schedule)
    for rank, row in enumerate(schedule.ops):
        made: set[Message] = set()
        sent: set[Message] = set()
        for index, op in enumerate(row):
            made.update(message for part in computes(op) if (message := gives(part)) is not None)
            if not isinstance(op, Send):
                continue
            if op.message not in made:
                yield Finding("matching", rank, index, f"{op} comes before the op that makes it")
            if op.message in sent:
                yield Finding("matching", rank, index, f"{op} is there again, expected each message to be sent once")
            sent.add(op.message)
            user = route.get((op.message.receiver, op.message.microbatch))
            if user is None or user == rank:
                yield Finding("matching", rank, index, f"{op} is sent, but no other rank uses it")
            elif user != op.peer:
                yield Finding("matching", rank, index, f"{op} goes to rank {op.peer}, expected rank {user}")


def _compare(
    channel: tuple[int, int], sends: list[tuple[int, Send | Recv]], recvs: list[tuple[int, Send | Recv]]
) -> Iterator[Finding]:
    sender, receiver = channel
    unsent = Counter(op.message for _, op in recvs) - Counter(op.message for _, op in sends)
    unreceived = Counter(op.message for _, op in sends) - Counter(op.message for _, op in recvs)
    if unsent or unreceived:
        for index, op in recvs:
            if unsent[op.message] > 0:
                unsent[op.message] -= 1
                yield Finding("matching", receiver, index, f"{op} has no Send on rank {sender}")
        for index, op in sends:
            if unreceived[op.message] > 0:
                unreceived[op.message] -= 1
                yield Finding("matching", sender, index, f"{op} has no Recv on rank {receiver}")
        return
    for (i, send), (j, recv) in zip(sends, recvs, strict=True):
        if send.message != recv.message:
            expected = Recv(send.message, sender)
            yield Finding(
                "matching", receiver, j,
                f"{recv} is out of order: rank {sender} sends {send} at this place (its op {i}), expected {expected}",
            )  # fmt: skip
            return


def _posts(schedule: Schedule, kind: type[Send] | type[Recv]) -> dict[tuple[int, int], list[tuple[int, Send | Recv]]]:
    """Return the (index, op) posted on each channel, a channel being (sender, receiver)."""
    found: defaultdict[tuple[int, int], list[tuple[int, Send | Recv]]] = defaultdict(list)
    for rank, row in enumerate(schedule.ops):
        for index, op in enumerate(row):
            if isinstance(op, kind):
                found[(rank, op.peer) if isinstance(op, Send) else (op.peer, rank)].append((index, op))
    return dict(found)


def _progress(schedule: Schedule) -> Iterator[Finding]:
    """Every rank that waits forever, and whom it waits for."""
    blocked = {stuck.rank: stuck for stuck in progress(schedule).blocked}
    if not blocked:
        return
    makers = {
        message: (rank, index, op)
        for rank, row in enumerate(schedule.ops)
        for index, op in enumerate(row)
        for part in computes(op)
        if (message := gives(part)) is not None
    }
    for stuck in blocked.values():
        yield Finding(
            "progress", stuck.rank, stuck.index, f"{stuck.op} waits forever for {_reason(stuck, makers, blocked)}"
        )


def _reason(stuck: Blocked, makers: dict[Message, tuple[int, int, Op]], blocked: dict[int, Blocked]) -> str:
    message = stuck.waits_for
    if message is None:
        return "the other replicas of its stage"
    if message not in makers:
        name = "F" if message.payload is Payload.ACTIVATION else "B or I"
        return f"{name} of stage {message.stage} and micro-batch {message.microbatch}, which nobody computes"
    rank, index, op = makers[message]
    maker = blocked.get(rank)
    if maker is None or maker.index > index:
        return f"{op} of rank {rank}, which runs but does not reach it: its Send or Recv is missing or out of order"
    if rank == stuck.rank:
        return f"{op}, which comes later in the same list (op {index})"
    return f"{op} of rank {rank} (op {index}), which waits at {maker.op} (op {maker.index})"
