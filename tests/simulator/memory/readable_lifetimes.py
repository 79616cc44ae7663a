"""Lifetimes of bytes by objects: the readable statement of `simulator.memory.lifetimes`, as an oracle."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, assert_never

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import MemorySample, Schedule, Span, Timeline
from pipesched.schedules.ops import (
    ENDS_MICROBATCH,
    Average,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    Recv,
    Send,
    StageOp,
    Step,
    computes,
    gives,
    needs_from_others,
    occupies_device,
)
from pipesched.schedules.semantics import Acknowledgements
from pipesched.schedules.weights import looks_ahead
from pipesched.simulator import Buffers, differ
from pipesched.simulator.memory import KINDS

_State = TypeVar("_State")


class Instant(NamedTuple):
    """A time, and the number of things that were over before on the same rank at the same time."""

    time_s: float
    order: int = 0


NEVER = Instant(math.inf)


class TimedOp(NamedTuple):
    """A span whose times are instants, so that ops of no duration have an order.

    Attributes:
        over: When a predicted copy of the weights is dropped, one instant after the end; the end without a copy.
    """

    op: Op
    posted: Instant
    start: Instant
    end: Instant
    over: Instant


def holds_inside(op: Op) -> bool:
    """Return whether `op` holds memory of its own; other ops post, or leave memory as it is."""
    match op:
        case Compute() | Overlap() | Step():
            return True
        case Send() | Recv() | StageOp():
            return False
        case _:
            assert_never(op)


def timed_ops(spans: Iterable[Span]) -> list[TimedOp]:
    """Return the ops of one rank, given in its list's order; instants of other ranks begin at order 0 like its own."""
    timed = []
    now = Instant(-math.inf)
    for span in spans:
        posted = now if span.posted_s == now.time_s else Instant(span.posted_s)
        start = now if span.start_s == now.time_s else Instant(span.start_s)
        end = over = start if span.end_s == span.start_s else Instant(span.end_s)
        if holds_inside(span.op):
            if end is start:
                end = over = Instant(start.time_s, start.order + 1)
            if any(map(looks_ahead, computes(span.op))):
                over = Instant(end.time_s, end.order + 1)
            now = over
        timed.append(TimedOp(span.op, posted, start, end, over))
    return timed


def seen_at_once(states: Sequence[_State], size: Callable[[_State], float]) -> Sequence[_State]:
    """Return the states to show of one time: the last, and before it the largest in between, if that is larger."""
    if len(states) < 2:
        return states
    largest = max(states, key=size)
    return states[-1:] if size(largest) <= size(states[-1]) else (largest, states[-1])


def value_bytes(costs: StageCosts, message: Message) -> int:
    """Return the bytes of an activation, or of its gradient, on one rank."""
    cost = costs.stages[message.origin]
    if message.payload is Payload.ACTIVATION or cost.output_gradient_bytes is None:
        return cost.output_bytes
    return cost.output_gradient_bytes


_Parts: TypeAlias = Sequence[tuple[Compute, TimedOp]]


class Lifetime(NamedTuple):
    """Bytes of one kind, and the instants between which they are held."""

    kind: str
    num_bytes: int
    since: Instant
    until: Instant = NEVER


def lifetimes(
    timeline: Timeline, costs: StageCosts, schedule: Schedule, *, buffers: Buffers = "pooled"
) -> Mapping[int, Sequence[Lifetime]]:
    """Return, per device, the lifetime of everything that it ever holds, in no order."""
    begin = Instant(min((span.posted_s for span in timeline.spans), default=0.0))
    held: defaultdict[int, list[Lifetime]] = defaultdict(list)
    for device, hold in _reference(timeline, costs, begin):
        held[device].append(hold)
    by_rank = _by_rank(timeline)
    let_go = {} if buffers == "per_microbatch" else _let_go(by_rank, schedule.num_stages)
    for rank, ops in by_rank.items():
        held_here = held[timeline.rank_to_device[rank]]
        works = [timed for timed in ops if occupies_device(timed.op)]
        parts = [(part, timed) for timed in works for part in computes(timed.op)]
        held_here += _weights(works, costs, begin)
        held_here += _gradients(works, costs)
        held_here += _activations(parts, costs, buffers)
        held_here += _working(parts, costs)
        kept = _kept_outputs(parts, costs)
        if buffers == "per_microbatch":
            held_here += _outputs(ops, parts, costs, kept)
            held_here += _own_buffers(parts, costs, schedule.num_stages, begin)
        else:
            held_here += _outputs(ops, parts, costs, kept, let_go)
            held_here += _pooled_buffers(ops, parts, costs, schedule.num_stages, kept, at_use=buffers == "at_use")
    return held


def _by_rank(timeline: Timeline) -> dict[int, list[TimedOp]]:
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans[span.rank].append(span)
    return {rank: timed_ops(its) for rank, its in spans.items()}


def _weights(ops: Sequence[TimedOp], costs: StageCosts, begin: Instant) -> Iterator[Lifetime]:
    """Yield weights, their optimizer's state, and the copies of versions that a Step would overwrite too early."""
    last_read: dict[tuple[int, int], tuple[int, Instant]] = {}
    stages: set[int] = set()
    for index, timed in enumerate(ops):
        for part in computes(timed.op):
            stages.add(part.stage)
            last_read[part.stage, part.version] = (index, timed.end)
            if looks_ahead(part):
                yield Lifetime("weight_versions", costs.stages[part.stage].weight_bytes, timed.start, timed.over)
    for stage in stages:
        yield Lifetime("weights", costs.stages[stage].weight_bytes, begin)
        kept_bytes = costs.stages[stage].kept_gradient_bytes
        yield Lifetime("optimizer", costs.stages[stage].optimizer_bytes - kept_bytes, begin)
        yield Lifetime("gradients", kept_bytes, begin)
    version: Counter[int] = Counter()
    for index, timed in enumerate(ops):
        if isinstance(timed.op, Step):
            stage = timed.op.stage
            read, until = last_read.get((stage, version[stage]), (-1, begin))
            version[stage] += 1
            if read > index:
                yield Lifetime("weight_versions", costs.stages[stage].weight_bytes, timed.start, until)


def _reference(timeline: Timeline, costs: StageCosts, begin: Instant) -> Iterator[tuple[int, Lifetime]]:
    """Yield (device, lifetime) of the memory for averaged models."""
    averages = {(span.rank, span.op.stage) for span in timeline.spans if isinstance(span.op, Average)}
    for rank, stage in averages:
        yield timeline.rank_to_device[rank], Lifetime("updates", costs.stages[stage].weight_bytes, begin)
    for device, stage in {(timeline.rank_to_device[rank], stage) for rank, stage in averages}:
        yield device, Lifetime("reference", costs.stages[stage].weight_bytes, begin)


def _gradients(ops: Sequence[TimedOp], costs: StageCosts) -> Iterator[Lifetime]:
    since: dict[int, Instant] = {}
    for timed in ops:
        for part in computes(timed.op):
            if part.phase in ENDS_MICROBATCH:
                since.setdefault(part.stage, timed.end)
        if isinstance(timed.op, Step) and timed.op.stage in since:
            stage = timed.op.stage
            yield Lifetime("gradients", costs.stages[stage].weight_bytes, since.pop(stage), timed.end)
    for stage, made in since.items():
        yield Lifetime("gradients", costs.stages[stage].weight_bytes, made)


def _activations(parts: _Parts, costs: StageCosts, buffers: Buffers) -> Iterator[Lifetime]:
    """Yield the activations that forwards save; a buffer per micro-batch keeps the input, which is not held twice.

    The input of stage 0 is data and not in the costs.
    """
    phases: defaultdict[tuple[int, int], dict[Phase, TimedOp]] = defaultdict(dict)
    for part, timed in parts:
        phases[part.stage, part.microbatch][part.phase] = timed
    for (stage, _), ops in phases.items():
        cost, input_bytes = costs.stages[stage], costs.stages[stage - 1].output_bytes if stage else 0
        for_weight = cost.saved_bytes if cost.saved_for_weight_bytes is None else cost.saved_for_weight_bytes
        in_buffer = input_bytes if buffers == "per_microbatch" else 0
        if Phase.FORWARD not in ops:
            continue
        since = ops[Phase.FORWARD].start
        if Phase.RECOMPUTE in ops:
            rebuilt = ops[Phase.RECOMPUTE].start
            yield Lifetime("activations", input_bytes - in_buffer, since, rebuilt)
            since = rebuilt
        backward = ops.get(Phase.BACKWARD) or ops.get(Phase.BACKWARD_INPUT)
        used = NEVER if backward is None else backward.end
        yield Lifetime("activations", max(0, cost.saved_bytes - in_buffer), since, used)
        if Phase.BACKWARD_INPUT in ops:
            weight = ops.get(Phase.BACKWARD_WEIGHT)
            until = NEVER if weight is None else weight.end
            yield Lifetime("activations", max(0, for_weight - in_buffer), used, until)


def _working(parts: _Parts, costs: StageCosts) -> Iterator[Lifetime]:
    """Yield the working memory of each backward; in an Overlap for as long as the pair runs."""
    for part, timed in parts:
        num_bytes = costs.stages[part.stage].working_bytes
        if num_bytes and part.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT):
            yield Lifetime("activations", num_bytes, timed.start, timed.end)


def _own_buffers(parts: _Parts, costs: StageCosts, num_stages: int, begin: Instant) -> Iterator[Lifetime]:
    """Yield a buffer for every message that a rank will ever get, allocated before the run and never freed.

    A message from a stage of the same rank takes the place of its buffer, so it counts like any other.
    """
    for message in dict.fromkeys(message for part, _ in parts for message in needs_from_others(part, num_stages)):
        yield Lifetime("receive_buffers", costs.message_bytes(message), begin)


def _pooled_buffers(
    ops: Sequence[TimedOp], parts: _Parts, costs: StageCosts, num_stages: int, kept: Container[Message | None],
    *, at_use: bool,
) -> Iterator[Lifetime]:  # fmt: skip
    """Yield the buffer of each message from its Recv or its use on; a message within a rank has one from op to op."""
    used = {message: timed.start for part, timed in reversed(parts) for message in needs_from_others(part, num_stages)}
    taken = {
        message: timed.start if part.phase is Phase.FORWARD else timed.over
        for part, timed in parts
        for message in needs_from_others(part, num_stages)
    }
    for timed in ops:
        if isinstance(timed.op, Recv):
            message = timed.op.message
            since = used.get(message, timed.posted) if at_use else timed.posted
            yield Lifetime("receive_buffers", costs.message_bytes(message), since, taken.pop(message, NEVER))
    made = _made(parts)
    for message, until in taken.items():  # not received, so made on this rank
        if message in made and message not in kept:
            yield Lifetime("send_buffers", value_bytes(costs, message), made[message], until)


def _outputs(
    ops: Sequence[TimedOp],
    parts: _Parts,
    costs: StageCosts,
    kept: Container[Message | None],
    let_go: Mapping[Message, Instant] | None = None,
) -> Iterator[Lifetime]:
    """Yield the sent messages, from their making until freed; without `let_go`, until the transfer ends."""
    made = _made(parts)
    for timed in ops:
        if isinstance(timed.op, Send) and (costs.compression is not None or timed.op.message not in kept):
            message = timed.op.message
            until = timed.end if let_go is None else let_go.get(message, NEVER)
            yield Lifetime("send_buffers", costs.message_bytes(message), made.get(message, timed.posted), until)


def _kept_outputs(parts: _Parts, costs: StageCosts) -> set[Message | None]:
    """Return the outputs that are saved as activations anyway, for as long as their sending needs them."""
    again = {(part.stage, part.microbatch) for part, _ in parts if part.phase is Phase.RECOMPUTE}
    return {
        gives(part)
        for part, _ in parts
        if part.phase is Phase.FORWARD
        and costs.stages[part.stage].output_is_saved
        and (part.stage, part.microbatch) not in again
    }


def _let_go(by_rank: Mapping[int, Sequence[TimedOp]], num_stages: int) -> dict[Message, Instant]:
    """Return when our executor frees each message; messages that it frees only at the end are missing."""
    let_go: dict[Message, Instant] = {}
    lists = {rank: [timed.op for timed in ops] for rank, ops in by_rank.items()}
    for rank, ops in by_rank.items():
        peers = {op.peer for op in lists[rank] if isinstance(op, Send) and op.peer in lists}
        proofs = {
            answer: (peer, count)
            for peer in peers
            for answer, count in Acknowledgements(lists[peer], peer, rank, num_stages)
        }
        sent: dict[int, deque[Message]] = {peer: deque() for peer in peers}
        num_gone = Counter[int]()
        for timed in ops:
            if isinstance(timed.op, Send):
                if timed.op.peer in sent:
                    sent[timed.op.peer].append(timed.op.message)
                continue
            for part in computes(timed.op):
                for answer in needs_from_others(part, num_stages):
                    if answer not in proofs:
                        continue
                    peer, count = proofs[answer]
                    for _ in range(count - num_gone[peer]):
                        let_go[sent[peer].popleft()] = timed.start
                    num_gone[peer] = max(num_gone[peer], count)
    return let_go


def _made(parts: _Parts) -> dict[Message | None, Instant]:
    """Return when each message of a rank was made."""
    return {gives(part): timed.end for part, timed in parts}


def memory(
    timeline: Timeline, costs: StageCosts, schedule: Schedule, *, buffers: Buffers = "pooled", num_pipelines: int = 1
) -> tuple[MemorySample, ...]:
    """Return what `simulator.memory.memory` does: samples in order of device, then time [s].

    Args:
        timeline: Timeline of `schedule`, lowered.
        costs: Bytes of every stage.
        schedule: Schedule with the number of stages.
        buffers: How receive buffers are allocated.
        num_pipelines: Equal pipelines in lockstep, of which the timeline is one; they share the reference model.
    """
    begin_s = min((span.posted_s for span in timeline.spans), default=0.0)
    by_device = sorted(lifetimes(timeline, costs, schedule, buffers=buffers).items())
    short = _starts_of_short(timeline, begin_s)
    return tuple(
        sample
        for device, holds in by_device
        for sample in _samples(device, begin_s, holds, short.get(device, ()), num_pipelines)
    )


def _starts_of_short(timeline: Timeline, begin_s: float) -> Mapping[int, Sequence[Instant]]:
    """Return, per device, the starts of ops that take no longer than a rounding, and yet hold something inside."""
    starts: defaultdict[int, list[Instant]] = defaultdict(list)
    for rank, ops in _by_rank(timeline).items():
        for timed in ops:
            if holds_inside(timed.op) and not differ(timed.start.time_s - begin_s, timed.end.time_s - begin_s):
                starts[timeline.rank_to_device[rank]].append(timed.start)
    return starts


def _samples(
    device: int,
    begin_s: float,
    lifetimes: Iterable[Lifetime],
    short: Sequence[Instant],
    num_pipelines: int,
) -> Iterator[MemorySample]:
    """Add up the lifetimes; changes at one instant are in one sample, and the first is at `begin_s`.

    Memory that lasts between two ops only for a rounding is in no sample; `short` are the starts of such short ops.
    """
    changes = [(begin_s, 0, KINDS[0], 0)]
    for kind, num_bytes, since, until in lifetimes:
        if num_bytes and since < until:
            all_bytes = num_bytes if kind == "reference" else num_pipelines * num_bytes
            changes.append((*since, kind, all_bytes))
            if until < NEVER:
                changes.append((*until, kind, -all_bytes))
    changes.sort()
    held = {kind: (kind, 0) for kind in KINDS}
    states, now_s, now_order = list[MemorySample](), *changes[0][:2]
    for time_s, order, kind, num_bytes in changes:
        if time_s != now_s or order != now_order:
            is_inside = any((now_s, now_order) <= start < (time_s, order) for start in short)
            if time_s == now_s or differ(now_s - begin_s, time_s - begin_s) or is_inside:
                states.append(MemorySample(device, now_s, tuple(held.values())))
            if time_s != now_s:
                yield from seen_at_once(states, _total_bytes)
                states.clear()
            now_s, now_order = time_s, order
        held[kind] = (kind, held[kind][1] + num_bytes)
    states.append(MemorySample(device, now_s, tuple(held.values())))
    yield from seen_at_once(states, _total_bytes)


def _total_bytes(sample: MemorySample) -> int:
    return sample.total_bytes
