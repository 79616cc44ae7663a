"""What ranks hold on their devices, and from when to when.

    weights          one version of every stage on the rank, always
    optimizer        its state, always
    weight_versions  a copy of the weights that a Step overwrites while a later op still reads them, from the Step to
                     the end of the last such op; a predicted copy while its op runs
    reference        of stages that are averaged: one reference model on the device, always
    updates          of such a stage, each rank's: a place for its update, or the weights before its Step, always
    gradients        as large as the weights, from the end of a stage's first B or W to the end of its next Step
    activations      from F to the end of B; when the backward is split, to the end of I, and from there to the end of
                     W what W still needs; with R only the stage's input until R
    receive_buffers  pooled (as our executor does): from the Recv to the start of F (then it is the stage's input, part
                     of the activations), and for a gradient to the end of B or I. Per micro-batch (as PyTorch
                     allocates them): one for every message of the whole run, always; the stage's input stays there
                     and is no part of the activations
    send_buffers     an output, from the end of its op. Pooled: until its rank takes a message that the receiver sent
                     after it had used this one, which is how the rank knows (nobody can be asked whether a message has
                     left); for a stage on the same rank until that stage's op starts (F) or ends (B, I). Per
                     micro-batch: to the end of its transfer. Nothing of the kind where the activations have it already

A Reduce holds nothing of its own: its ring works in the buckets that hold the gradients until the Step.

This is what is held between ops, as the executor measures it. Within the first B of a batch gradients grow while
activations go, so the peak inside an op may be higher, by the smaller of the two at most.

The input of stage 0 is data: its bytes are not in the costs, and with R it counts as nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from pipesched.profiles.stage_costs import StageCosts
from pipesched.schedules.letters import Letters
from pipesched.schedules.op import Average, Compute, Message, Phase, Recv, Send, Step, computes, gives, needs
from pipesched.schedules.schedule import Schedule
from pipesched.schedules.timeline import Span, Timeline
from pipesched.schedules.versions import looks_ahead
from pipesched.simulator.activations import Part, activation_bytes, activations
from pipesched.simulator.errors import SimulationError

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
"""Every sample has these, in this order."""

Buffers: TypeAlias = Literal["pooled", "per_microbatch"]
_Parts: TypeAlias = Sequence[tuple[Compute, Span]]


class Hold(NamedTuple):
    """Bytes of a kind, held for a time."""

    kind: str
    num_bytes: int
    from_s: float
    until_s: float = math.inf


def holds(
    timeline: Timeline, costs: StageCosts, schedule: Schedule, *, buffers: Buffers = "pooled"
) -> Mapping[int, Sequence[Hold]]:
    """Return, per device, all that it holds at some time; arguments and errors as those of `memory`.

    The times of the timeline are not looked at, so they may be numbers of times.
    """
    if schedule.num_stages > costs.num_stages:
        raise SimulationError(
            f"{schedule.name}: got costs ({costs.origin}) of {costs.num_stages} stages, expected {schedule.num_stages}"
        )
    begin_s = min((span.posted_s for span in timeline.spans), default=0.0)
    found: defaultdict[int, list[Hold]] = defaultdict(list)
    for device, hold in _reference(timeline, costs, begin_s):
        found[device].append(hold)
    by_rank = _by_rank(timeline)
    let_go_s = _let_go_s(by_rank, schedule.num_stages) if buffers == "pooled" else {}
    for rank, spans in by_rank.items():
        mine = found[timeline.rank_to_device[rank]]
        parts = [(part, span) for span in spans for part in computes(span.op)]
        mine += _weights(spans, costs, begin_s)
        mine += _gradients(spans, costs)
        mine += _activations(parts, costs, buffers)
        kept = _kept_outputs(parts, costs)
        if buffers == "pooled":
            mine += _outputs(spans, parts, costs, kept, let_go_s)
            mine += _pooled_buffers(spans, parts, costs, schedule.num_stages, kept)
        else:
            mine += _outputs(spans, parts, costs, kept)
            mine += _own_buffers(parts, costs, schedule.num_stages, begin_s)
    return found


def _by_rank(timeline: Timeline) -> dict[int, list[Span]]:
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans[span.rank].append(span)
    return spans


def _weights(spans: Sequence[Span], costs: StageCosts, begin_s: float) -> Iterator[Hold]:
    """Weights, their optimizer's state, and the copies of versions that a Step would destroy too early."""
    last_read: dict[tuple[int, int], tuple[int, float]] = {}
    stages: set[int] = set()
    for index, span in enumerate(spans):
        for part in computes(span.op):
            stages.add(part.stage)
            last_read[part.stage, part.version] = (index, span.end_s)
            if looks_ahead(part):
                yield Hold("weight_versions", costs.stages[part.stage].weight_bytes, span.start_s, span.end_s)
    for stage in stages:
        yield Hold("weights", costs.stages[stage].weight_bytes, begin_s)
        yield Hold("optimizer", costs.stages[stage].optimizer_bytes, begin_s)
    version: Counter[int] = Counter()
    for index, span in enumerate(spans):
        if isinstance(span.op, Step):
            stage = span.op.stage
            read, until_s = last_read.get((stage, version[stage]), (-1, 0.0))
            version[stage] += 1
            if read > index:
                yield Hold("weight_versions", costs.stages[stage].weight_bytes, span.start_s, until_s)


def _reference(timeline: Timeline, costs: StageCosts, begin_s: float) -> Iterator[tuple[int, Hold]]:
    """Yield (device, what is held there) beside the models that are averaged."""
    averages = {(span.rank, span.op.stage) for span in timeline.spans if isinstance(span.op, Average)}
    for rank, stage in averages:
        yield timeline.rank_to_device[rank], Hold("updates", costs.stages[stage].weight_bytes, begin_s)
    for device, stage in {(timeline.rank_to_device[rank], stage) for rank, stage in averages}:
        yield device, Hold("reference", costs.stages[stage].weight_bytes, begin_s)


def _gradients(spans: Sequence[Span], costs: StageCosts) -> Iterator[Hold]:
    since_s: dict[int, float] = {}
    for span in spans:
        for part in computes(span.op):
            if part.phase in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT):
                since_s.setdefault(part.stage, span.end_s)
        if isinstance(span.op, Step) and span.op.stage in since_s:
            stage = span.op.stage
            yield Hold("gradients", costs.stages[stage].weight_bytes, since_s.pop(stage), span.end_s)
    for stage, from_s in since_s.items():
        yield Hold("gradients", costs.stages[stage].weight_bytes, from_s)


def _activations(parts: _Parts, costs: StageCosts, buffers: Buffers) -> Iterator[Hold]:
    """With a buffer per micro-batch the stage's input stays there, and is not held once more."""
    for part, stage, from_s, until_s in activations(parts):
        num_bytes = activation_bytes(costs, part, stage)
        if buffers == "per_microbatch":
            num_bytes = max(0, num_bytes - activation_bytes(costs, Part.INPUT, stage))
        yield Hold("activations", num_bytes, from_s, until_s)


def _own_buffers(parts: _Parts, costs: StageCosts, num_stages: int, begin_s: float) -> Iterator[Hold]:
    """A buffer for every message that a rank will ever get, made before the run and never dropped.

    A message from a stage of the same rank is put in place of its buffer, so it counts like any other.
    """
    for part, _ in parts:
        for message in needs(part, num_stages):
            if message.stage != part.stage:
                yield Hold("receive_buffers", costs.message_bytes(message), begin_s)


def _pooled_buffers(
    spans: Sequence[Span], parts: _Parts, costs: StageCosts, num_stages: int, kept: Container[Message | None]
) -> Iterator[Hold]:
    """A buffer from its Recv until its message was used; on a rank of its own a message is held from op to op."""
    taken_s = {
        message: span.start_s if part.phase is Phase.FORWARD else span.end_s
        for part, span in parts
        for message in needs(part, num_stages)
        if message.stage != part.stage
    }
    for span in spans:
        if isinstance(span.op, Recv):
            message = span.op.message
            until_s = taken_s.pop(message, math.inf)
            yield Hold("receive_buffers", costs.message_bytes(message), span.posted_s, until_s)
    made_s = _made_s(parts)
    for message, until_s in taken_s.items():  # not received, so made on this rank
        if message in made_s and message not in kept:
            yield Hold("send_buffers", costs.stages[message.origin].output_bytes, made_s[message], until_s)


def _outputs(
    spans: Sequence[Span],
    parts: _Parts,
    costs: StageCosts,
    kept: Container[Message | None],
    let_go_s: Mapping[Message, float] | None = None,
) -> Iterator[Hold]:
    """What is sent, until it is let go; None: until it has left."""
    made_s = _made_s(parts)
    for span in spans:
        if isinstance(span.op, Send) and (costs.compression is not None or span.op.message not in kept):
            message = span.op.message
            until_s = span.end_s if let_go_s is None else let_go_s.get(message, math.inf)
            yield Hold("send_buffers", costs.message_bytes(message), made_s.get(message, span.posted_s), until_s)


def _kept_outputs(parts: _Parts, costs: StageCosts) -> set[Message | None]:
    """Return the outputs that are among the activations for as long as they could be held for sending."""
    again = {(part.stage, part.microbatch) for part, _ in parts if part.phase is Phase.RECOMPUTE}
    return {
        gives(part)
        for part, _ in parts
        if part.phase is Phase.FORWARD
        and costs.stages[part.stage].output_is_saved
        and (part.stage, part.microbatch) not in again
    }


def _let_go_s(by_rank: Mapping[int, Sequence[Span]], num_stages: int) -> dict[Message, float]:
    """Return when each message is let go of, as our executor does it; some are at the end only, and not in it."""
    let_go_s: dict[Message, float] = {}
    ops = {rank: [span.op for span in spans] for rank, spans in by_rank.items()}
    for rank, spans in by_rank.items():
        peers = {op.peer for op in ops[rank] if isinstance(op, Send) and op.peer in ops}
        proofs = {answer: (peer, count) for peer in peers for answer, count in Letters(ops[peer], rank, num_stages)}
        sent: dict[int, deque[Message]] = {peer: deque() for peer in peers}
        num_gone = Counter[int]()
        for span in spans:
            if isinstance(span.op, Send) and span.op.peer in sent:
                sent[span.op.peer].append(span.op.message)
            for answer in (message for part in computes(span.op) for message in needs(part, num_stages)):
                peer, count = proofs.get(answer, (rank, 0))
                for _ in range(count - num_gone[peer]):
                    let_go_s[sent[peer].popleft()] = span.start_s
                num_gone[peer] = max(num_gone[peer], count)
    return let_go_s


def _made_s(parts: _Parts) -> dict[Message | None, float]:
    """Return when each message of a rank was made [s]."""
    return {gives(part): span.end_s for part, span in parts}
