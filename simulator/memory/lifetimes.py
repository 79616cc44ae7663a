"""Lifetimes of bytes: the memory of ranks on their devices, and from when to when.

    list of a rank    Recv   F   Send ..  Recv   B   Send ..  Step
    receive_buffers   ├─────┤             ├─────────┤                    the activation goes with F, the gradient with B
    activations             ├───────────────────────┤
    send_buffers                ├───────────────┤   ├─────────┤          until the receiver has shown that it used it
    gradients                                       ├──────────────┤
    weights          ─────────────────────────────────────────────────

The kinds, and when each is held:

    weights          one version of every stage on the rank, always
    optimizer        its state, always
    weight_versions  a copy of the weights that a Step overwrites while a later op still reads them, from the Step to
                     the end of the last such op; a predicted copy from the start of its op to just after its end
    reference        of stages that are averaged: one reference model on the device, always
    updates          of such a stage, each rank's: a place for its update, or the weights before its Step, always
    gradients        as large as the weights, from the end of a stage's first B or W to the end of its next Step
    activations      from F to the end of B; when the backward is split, to the end of I, and from there to the end of
                     W the part that W still needs; with R only the stage's input until R; and while B or I runs its
                     working memory, such as gradients of activations inside the stage
    receive_buffers  pooled (as our executor between processes): from the Recv to the start of F (then it is the stage's
                     input, part of the activations), and for a gradient until B or I is over. At use (as our executor
                     on the streams of a GPU): from the start of F, B or I. Per micro-batch (as PyTorch allocates them):
                     one for every message of the whole run, always; the stage's input stays there and is no part of
                     the activations
    send_buffers     an output, from the end of its op. Pooled: until its rank takes a message that the receiver sent
                     after use, which is the rank's only proof (no call reports whether a message has left); for a stage
                     on the same rank until that stage's op starts (F) or ends (B, I). Per micro-batch: to the end of
                     its transfer. None if the activations contain it already

A Reduce holds nothing of its own: its ring works in the buckets that hold the gradients until the Step.

Memory between ops and inside ops is covered: B and I hold their working memory, as far as it is in the costs; a Step
holds its gradients and the copy that it keeps; an op on predicted weights holds its copy, at its end beside its output.
Without the working memory of B and I, it is the memory that the executor measures between ops. Within the first B of a
batch gradients grow while activations are freed, so the peak inside an op may be higher, by the smaller of the two at
most. Temporary memory of an optimizer or a prediction is not counted. The working memory of F, W and R is not in the
costs.

Lifetimes are given in instants (`memory.instants`), so that ops which take no time hold their bytes too.

The input of stage 0 is data: its bytes are not in the costs, and with R it counts as nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Span, Timeline
from pipesched.schedules.ops import (
    ENDS_MICROBATCH,
    Average,
    Compute,
    Message,
    Phase,
    Recv,
    Send,
    Step,
    computes,
    gives,
    needs_from_others,
    occupies_device,
)
from pipesched.schedules.semantics import Acknowledgements
from pipesched.schedules.weights import looks_ahead
from pipesched.simulator import Buffers, SimulationError
from pipesched.simulator.memory.activations import Part, activation_bytes, activations
from pipesched.simulator.memory.instants import NEVER, Instant, TimedOp, timed_ops

KINDS = (
    "weights",
    "weight_versions",
    "reference",
    "updates",
    "gradients",
    "optimizer",
    "activations",
    "receive_buffers",
    "send_buffers",
)  # fmt: skip
"""The kinds of bytes; every memory sample has all of them, in this order."""

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
    """Return, per device, the lifetime of everything that it ever holds.

    Args:
        timeline: Timeline of `schedule`, lowered. Its times are only compared, so they may also be ranks of times [s].
        costs: Bytes of every stage.
        schedule: Schedule with the number of stages.
        buffers: How receive buffers are allocated.

    Returns:
        By device, the lifetimes with their bytes, in no order; nothing of a device without ranks.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    if schedule.num_stages > costs.num_stages:
        raise SimulationError(
            f"{schedule.name}: got costs ({costs.origin}) of {costs.num_stages} stages, expected {schedule.num_stages}"
        )
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
        yield Lifetime("optimizer", costs.stages[stage].optimizer_bytes, begin)
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
    """With a buffer per micro-batch the stage's input stays there, and is not held once more."""
    for part, stage, since, until in activations(parts):
        num_bytes = activation_bytes(costs, part, stage)
        if buffers == "per_microbatch":
            num_bytes = max(0, num_bytes - activation_bytes(costs, Part.INPUT, stage))
        yield Lifetime("activations", num_bytes, since, until)


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
    for part, _ in parts:
        for message in needs_from_others(part, num_stages):
            yield Lifetime("receive_buffers", costs.message_bytes(message), begin)


def _pooled_buffers(
    ops: Sequence[TimedOp], parts: _Parts, costs: StageCosts, num_stages: int, kept: Container[Message | None],
    *, at_use: bool,
) -> Iterator[Lifetime]:  # fmt: skip
    """Yield the buffer of each message from its Recv or its use on; a message within a rank has one from op to op."""
    used = {message: timed.start for part, timed in parts for message in needs_from_others(part, num_stages)}
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
            yield Lifetime("send_buffers", costs.stages[message.origin].output_bytes, made[message], until)


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
