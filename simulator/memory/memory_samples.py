"""Memory of each device over a Timeline, predicted or measured: the lifetimes of its bytes, added up.

    op             F0    F1    B0          B1          Step
    time [s]      0     1     2           4           6     7
    weights       100 ──────────────────────────────────────
    activations   30    60                30          0
    gradients                             100 ───────────── 0
    samples       130   160               230         200   100

That is a stage of 100 bytes of weights, with 30 bytes of activations of each micro-batch: a sample wherever the sum
changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import MemorySample, Schedule, Span, Timeline
from pipesched.schedules.common import paused_collector, too_many_objects
from pipesched.schedules.ops import Op, Recv, Send
from pipesched.simulator import Buffers, Estimate, Meaning, SimulationError, differ
from pipesched.simulator.memory.instants import NEVER, holds_inside, seen_at_once
from pipesched.simulator.memory.lifetimes import KINDS as KINDS
from pipesched.simulator.memory.lifetimes import Lifetime, lifetimes

_OP_BYTES = 3000
"""Memory to add up the bytes of an op, with the op and its span [bytes]."""


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


def memory(
    timeline: Timeline, costs: StageCosts, schedule: Schedule, *, buffers: Buffers = "pooled", num_pipelines: int = 1
) -> tuple[MemorySample, ...]:
    """Return the memory of every device at each change.

    If ops take no time, a device may hold more in passing through one time than at its end: then it has two samples
    of that time, the peak and the last.

    Args:
        timeline: Timeline of `schedule`, lowered.
        costs: Bytes of every stage.
        schedule: Schedule with the number of stages.
        buffers: How receive buffers are allocated; see `simulator.memory.lifetimes`.
        num_pipelines: Equal pipelines in lockstep on the same devices, of which the timeline is one: each holds the
            same memory, but there is only one reference model.

    Returns:
        Samples in order of device, then time [s], each with the bytes of every kind of `KINDS`; the first of a device
        is of the timeline's beginning.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    with paused_collector():
        begin_s = min((span.posted_s for span in timeline.spans), default=0.0)
        by_device = sorted(lifetimes(timeline, costs, schedule, buffers=buffers).items())
        short = _starts_of_short(timeline, begin_s)
        return tuple(
            sample for device, holds in by_device for sample in _samples(device, begin_s, holds, short, num_pipelines)
        )


def with_memory(timeline: Timeline, costs: StageCosts, schedule: Schedule, *, buffers: Buffers = "pooled") -> Timeline:
    """Return the Timeline with its memory, if the costs have bytes; arguments as in `memory`.

    Raises:
        SimulationError: The schedule has more stages than the costs, or too many ops for this machine's memory.
    """
    if not costs.has_bytes:
        return timeline
    if fault := too_many_objects(len(timeline.columns.ops.codes), schedule.num_microbatches, _OP_BYTES):
        raise SimulationError(f"{schedule.name}: memory: {fault}")
    return replace(timeline, memory=memory(timeline, costs, schedule, buffers=buffers))


def iteration(timeline: Timeline, schedule: Schedule, costs: StageCosts, cluster: Cluster) -> Estimate:
    """Return the time of an iteration and the memory over it, in which the Timeline has its memory too.

    Without bytes in the costs there are neither peaks nor samples.

    Args:
        timeline: The Timeline of `schedule`, lowered, with all pipelines.
        schedule: Schedule with the number of stages.
        costs: Seconds and bytes of every stage.
        cluster: Says how much memory the devices have.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    timeline = with_memory(timeline, costs, schedule)
    peaks = {device: peak.total_bytes for device, peak in peak_memory(timeline.memory).items()}
    over = over_capacity(timeline.memory, cluster, timeline)
    return Estimate(Meaning.ITERATION, timeline.makespan_s, peaks, None if over is None else str(over), timeline)


def peak_memory(samples: Iterable[MemorySample]) -> Mapping[int, MemorySample]:
    """Return, per device, the first sample of the peak: its bytes, time and kinds."""
    return {
        device: max(group, key=lambda sample: sample.total_bytes)
        for device, group in groupby(samples, key=lambda sample: sample.device)
    }


def over_capacity(samples: Iterable[MemorySample], cluster: Cluster, timeline: Timeline) -> OverCapacity | None:
    """Return the first moment at which a device holds more than its capacity; None when none does."""
    first: tuple[MemorySample, int, bool] | None = None
    known = tuple(samples)
    for sample, following in zip_longest(known, known[1:]):
        capacity = cluster.devices[sample.device].memory_bytes
        if capacity is not None and sample.total_bytes > capacity and (not first or sample.time_s < first[0].time_s):
            passes = following is not None and (following.device, following.time_s) == (sample.device, sample.time_s)
            first = (sample, capacity, passes)
    if first is None:
        return None
    sample, capacity, passes = first
    return taken_over(timeline, sample.device, sample.time_s, sample.total_bytes, capacity, passes=passes)


def taken_over(
    timeline: Timeline, device: int, time_s: float, held_bytes: int, capacity_bytes: int, *, passes: bool = False
) -> OverCapacity:
    """Return the op that takes a device over its capacity at a time [s]: the last op until then that takes memory.

    Args:
        passes: Whether the excess lasts only for a moment of that time.
    """
    takers = [
        (_taken_s(span), index, span)
        for index, span in enumerate(timeline.spans)
        if timeline.rank_to_device[span.rank] == device and not isinstance(span.op, Send)
    ]
    before = [taker for taker in takers if taker[0] <= time_s and not (passes and _lasts_from(taker[2], time_s))]
    _, _, culprit = max(before, default=min(takers))
    return OverCapacity(device, culprit.rank, culprit.op, time_s, held_bytes, capacity_bytes)


def _taken_s(span: Span) -> float:
    """Return when an op takes its memory: a Recv when it is posted, all else when it starts."""
    return span.posted_s if isinstance(span.op, Recv) else span.start_s


def _lasts_from(span: Span, time_s: float) -> bool:
    return _taken_s(span) == time_s < span.end_s


def _starts_of_short(timeline: Timeline, begin_s: float) -> set[tuple[int, float]]:
    """Return (device, time) of the starts of ops that take no longer than a rounding, and yet hold something inside."""
    return {
        (timeline.rank_to_device[span.rank], span.start_s)
        for span in timeline.spans
        if span.start_s < span.end_s
        and not differ(span.start_s - begin_s, span.end_s - begin_s)
        and holds_inside(span.op)
    }


def _samples(
    device: int,
    begin_s: float,
    lifetimes: Iterable[Lifetime],
    short: Container[tuple[int, float]],
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
            if time_s == now_s or differ(now_s - begin_s, time_s - begin_s) or (device, now_s) in short:
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
