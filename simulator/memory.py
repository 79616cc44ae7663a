"""Bytes held on each device over a Timeline, predicted or measured.

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
    send_buffers     an output, from the end of its op to the end of its transfer; for a stage on the same rank until
                     that stage's op starts (F) or ends (B, I), if buffers are pooled

A Reduce holds nothing of its own: its ring works in the buckets that hold the gradients until the Step.

This is what is held between ops, as the executor measures it. Within the first B of a batch gradients grow while
activations go, so the peak inside an op may be higher, by the smaller of the two at most.

The input of stage 0 is data: its bytes are not in the costs, and with R it counts as nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

from profiles.cluster import Cluster
from profiles.stage_costs import StageCosts
from schedules.op import Average, Compute, Message, Op, Phase, Recv, Send, Step, computes, gives, needs
from schedules.schedule import Schedule
from schedules.timeline import MemorySample, Span, Timeline
from schedules.versions import looks_ahead
from simulator.activations import Part, activation_bytes, activations
from simulator.errors import SimulationError

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


@dataclass(frozen=True, slots=True)
class OverCapacity:
    """A device that holds more than it has, and the op that took it there."""

    device: int
    rank: int
    op: Op
    time_s: float
    held_bytes: int
    capacity_bytes: int

    def __str__(self) -> str:
        return (
            f"device {self.device} holds {self.held_bytes} bytes of {self.capacity_bytes} "
            f"from {self.time_s:.6g} s on, at {self.op} of rank {self.rank}"
        )


class _Hold(NamedTuple):
    kind: str
    num_bytes: int
    from_s: float
    until_s: float = math.inf


def memory(
    timeline: Timeline, costs: StageCosts, schedule: Schedule, *, buffers: Buffers = "pooled", num_pipelines: int = 1
) -> tuple[MemorySample, ...]:
    """Return what every device holds whenever it changes.

    Args:
        timeline: Of `schedule`, lowered.
        costs: Bytes of every stage.
        schedule: Says how many stages there are.
        buffers: How receive buffers are had; see above.
        num_pipelines: Equal ones in step on the same devices, of which the timeline is one: all hold as much, but of
            the reference model there is one.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    if schedule.num_stages > costs.num_stages:
        raise SimulationError(
            f"{schedule.name}: got costs ({costs.origin}) of {costs.num_stages} stages, expected {schedule.num_stages}"
        )
    begin_s = min((span.posted_s for span in timeline.spans), default=0.0)
    holds: defaultdict[int, list[_Hold]] = defaultdict(list)
    for device, hold in _reference(timeline, costs, begin_s):
        holds[device].append(hold)
    for rank, spans in _by_rank(timeline).items():
        mine = holds[timeline.rank_to_device[rank]]
        parts = [(part, span) for span in spans for part in computes(span.op)]
        mine += _weights(spans, costs, begin_s)
        mine += _gradients(spans, costs)
        mine += _activations(parts, costs, buffers)
        mine += _outputs(spans, parts, costs)
        if buffers == "pooled":
            mine += _pooled_buffers(spans, parts, costs, schedule.num_stages)
        else:
            mine += _own_buffers(parts, costs, schedule.num_stages, begin_s)
    return tuple(
        sample for device in sorted(holds) for sample in _samples(device, begin_s, holds[device], num_pipelines)
    )


def peak_memory(samples: Iterable[MemorySample]) -> Mapping[int, MemorySample]:
    """Return, per device, the first sample of the most bytes: how many, when, and made of what."""
    return {
        device: max(group, key=lambda sample: sample.total_bytes)
        for device, group in groupby(samples, key=lambda sample: sample.device)
    }


def over_capacity(samples: Iterable[MemorySample], cluster: Cluster, timeline: Timeline) -> OverCapacity | None:
    """Return the first moment at which a device holds more than its capacity; None when none does."""
    first: tuple[MemorySample, int] | None = None
    for sample in samples:
        capacity = cluster.devices[sample.device].memory_bytes
        if capacity is not None and sample.total_bytes > capacity and (not first or sample.time_s < first[0].time_s):
            first = (sample, capacity)
    if first is None:
        return None
    sample, capacity = first
    takers = [
        (_taken_s(span), index, span)
        for index, span in enumerate(timeline.spans)
        if timeline.rank_to_device[span.rank] == sample.device and not isinstance(span.op, Send)
    ]
    _, _, culprit = max((taker for taker in takers if taker[0] <= sample.time_s), default=min(takers))
    return OverCapacity(sample.device, culprit.rank, culprit.op, sample.time_s, sample.total_bytes, capacity)


def _taken_s(span: Span) -> float:
    """Return when an op takes its memory: a Recv when it is posted, all else when it starts."""
    return span.posted_s if isinstance(span.op, Recv) else span.start_s


def _by_rank(timeline: Timeline) -> dict[int, list[Span]]:
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans[span.rank].append(span)
    return spans


def _weights(spans: Sequence[Span], costs: StageCosts, begin_s: float) -> Iterator[_Hold]:
    """Weights, their optimizer's state, and the copies of versions that a Step would destroy too early."""
    last_read: dict[tuple[int, int], tuple[int, float]] = {}
    stages: set[int] = set()
    for index, span in enumerate(spans):
        for part in computes(span.op):
            stages.add(part.stage)
            last_read[part.stage, part.version] = (index, span.end_s)
            if looks_ahead(part):
                yield _Hold("weight_versions", costs.stages[part.stage].weight_bytes, span.start_s, span.end_s)
    for stage in stages:
        yield _Hold("weights", costs.stages[stage].weight_bytes, begin_s)
        yield _Hold("optimizer", costs.stages[stage].optimizer_bytes, begin_s)
    version: Counter[int] = Counter()
    for index, span in enumerate(spans):
        if isinstance(span.op, Step):
            stage = span.op.stage
            read, until_s = last_read.get((stage, version[stage]), (-1, 0.0))
            version[stage] += 1
            if read > index:
                yield _Hold("weight_versions", costs.stages[stage].weight_bytes, span.start_s, until_s)


def _reference(timeline: Timeline, costs: StageCosts, begin_s: float) -> Iterator[tuple[int, _Hold]]:
    """Yield (device, what is held there) beside the models that are averaged."""
    averages = {(span.rank, span.op.stage) for span in timeline.spans if isinstance(span.op, Average)}
    for rank, stage in averages:
        yield timeline.rank_to_device[rank], _Hold("updates", costs.stages[stage].weight_bytes, begin_s)
    for device, stage in {(timeline.rank_to_device[rank], stage) for rank, stage in averages}:
        yield device, _Hold("reference", costs.stages[stage].weight_bytes, begin_s)


def _gradients(spans: Sequence[Span], costs: StageCosts) -> Iterator[_Hold]:
    since_s: dict[int, float] = {}
    for span in spans:
        for part in computes(span.op):
            if part.phase in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT):
                since_s.setdefault(part.stage, span.end_s)
        if isinstance(span.op, Step) and span.op.stage in since_s:
            stage = span.op.stage
            yield _Hold("gradients", costs.stages[stage].weight_bytes, since_s.pop(stage), span.end_s)
    for stage, from_s in since_s.items():
        yield _Hold("gradients", costs.stages[stage].weight_bytes, from_s)


def _activations(parts: _Parts, costs: StageCosts, buffers: Buffers) -> Iterator[_Hold]:
    """With a buffer per micro-batch the stage's input stays there, and is not held once more."""
    for part, stage, from_s, until_s in activations(parts):
        num_bytes = activation_bytes(costs, part, stage)
        if buffers == "per_microbatch":
            num_bytes = max(0, num_bytes - activation_bytes(costs, Part.INPUT, stage))
        yield _Hold("activations", num_bytes, from_s, until_s)


def _own_buffers(parts: _Parts, costs: StageCosts, num_stages: int, begin_s: float) -> Iterator[_Hold]:
    """A buffer for every message that a rank will ever get, made before the run and never dropped.

    A message from a stage of the same rank is put in place of its buffer, so it counts like any other.
    """
    for part, _ in parts:
        for message in needs(part, num_stages):
            if message.stage != part.stage:
                yield _Hold("receive_buffers", costs.message_bytes(message), begin_s)


def _pooled_buffers(spans: Sequence[Span], parts: _Parts, costs: StageCosts, num_stages: int) -> Iterator[_Hold]:
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
            yield _Hold("receive_buffers", costs.message_bytes(message), span.posted_s, until_s)
    made_s = _made_s(parts)
    for message, until_s in taken_s.items():  # not received, so made on this rank
        if message in made_s:
            yield _Hold("send_buffers", costs.stages[message.origin].output_bytes, made_s[message], until_s)


def _outputs(spans: Sequence[Span], parts: _Parts, costs: StageCosts) -> Iterator[_Hold]:
    """What is sent, until it has left."""
    made_s = _made_s(parts)
    for span in spans:
        if isinstance(span.op, Send):
            message = span.op.message
            from_s = made_s.get(message, span.posted_s)
            yield _Hold("send_buffers", costs.message_bytes(message), from_s, span.end_s)


def _made_s(parts: _Parts) -> dict[Message | None, float]:
    """Return when each message of a rank was made [s]."""
    return {gives(part): span.end_s for part, span in parts}


def _samples(device: int, begin_s: float, holds: Iterable[_Hold], num_pipelines: int) -> Iterator[MemorySample]:
    """Add up the holds; what changes at one instant changes in one sample, and the first is at `begin_s`."""
    changes = [(begin_s, KINDS[0], 0)]
    for kind, num_bytes, from_s, until_s in holds:
        if num_bytes and from_s < until_s:
            all_bytes = num_bytes if kind == "reference" else num_pipelines * num_bytes
            changes.append((from_s, kind, all_bytes))
            if until_s < math.inf:
                changes.append((until_s, kind, -all_bytes))
    changes.sort(key=itemgetter(0))
    held, since_s = dict.fromkeys(KINDS, 0), changes[0][0]
    for time_s, kind, num_bytes in changes:
        if time_s != since_s:
            yield MemorySample(device, since_s, tuple(held.items()))
            since_s = time_s
        held[kind] += num_bytes
    yield MemorySample(device, since_s, tuple(held.items()))
