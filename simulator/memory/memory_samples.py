"""Memory of each device over a Timeline, predicted or measured: the lifetimes of its bytes, added up.

    op             F0    F1    B0          B1          Step
    time [s]      0     1     2           4           6     7
    weights       100 ──────────────────────────────────────
    activations   30    60                30          0
    gradients                             100 ───────────── 0
    samples       130   160               230         200   100

The stage has 100 bytes of weights, and 30 bytes of activations per micro-batch. A sample is taken wherever the sum
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import MemorySample, Schedule, Span, Timeline
from pipesched.schedules.common import too_many_objects
from pipesched.schedules.ops import Op, Recv, Send
from pipesched.simulator import Buffers, Estimate, Meaning, SimulationError, differ
from pipesched.simulator.memory.instants import Instants, Totals, holds_inside, seen_at_once, totals
from pipesched.simulator.memory.lifetime_loop import OPTIMIZER, START, UPDATES
from pipesched.simulator.memory.lifetimes import KIND_OF, KINDS, lifetimes, row_bytes

_OP_BYTES = 3000
"""Memory to add up the bytes of an op, with the op and its span [bytes]."""


@dataclass(frozen=True, slots=True)
class FullestMoment:
    """The moment at which one of all devices holds most [bytes], and the op that took it there."""

    device: int
    rank: int
    op: Op
    time_s: float
    held_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"device": self.device, "rank": self.rank, "op": str(self.op), "time_s": self.time_s}


@dataclass(frozen=True, slots=True)
class OverCapacity(FullestMoment):
    """A device that holds more bytes than its capacity, from an op on."""

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

    A total counts if it lasts longer than a rounding, or if an op that holds memory runs in it, however short that op
    is. If ops take no time, a device may hold more in passing through one time than at its end: then it has two samples
    of that time, the peak and the last.

    Args:
        timeline: Timeline of `schedule`, lowered.
        costs: Bytes of every stage.
        schedule: Schedule with the number of stages.
        buffers: How receive buffers are allocated; see `simulator.memory.lifetimes`.
        num_pipelines: Equal pipelines in lockstep on the same devices, which the timeline of one represents: each holds
            the same memory, and they share one reference model.

    Returns:
        Samples in order of device, then time [s], each with the bytes of every kind of `KINDS`; the first of a device
        is of the timeline's beginning.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    held = _held(timeline, costs, schedule, buffers)
    amounts = held.amounts
    if num_pipelines > 1:  # in Python's numbers, which have any size
        amounts = amounts.astype(object) * [1 if kind == "reference" else num_pipelines for kind in KINDS]
    columns = zip(held.devices.tolist(), held.times.tolist(), amounts.tolist(), strict=True)
    return tuple(MemorySample(device, time_s, tuple(zip(KINDS, its, strict=True))) for device, time_s, its in columns)


def peak_bytes(
    timeline: Timeline, costs: StageCosts, schedule: Schedule, *, buffers: Buffers = "pooled"
) -> dict[int, int]:
    """Return the peak of every device, its largest total [bytes]; arguments and errors as in `memory`."""
    held = _held(timeline, costs, schedule, buffers)
    devices, begins = np.unique(held.devices, return_index=True)
    peaks = np.maximum.reduceat(held.amounts.sum(axis=1), begins) if len(devices) else begins
    return dict(zip(devices.tolist(), peaks.tolist(), strict=True))


def _held(timeline: Timeline, costs: StageCosts, schedule: Schedule, buffers: Buffers) -> Totals:
    """Return the bytes of all kinds of each device whenever they change, in order of device, then time."""
    require_stages(schedule, costs)
    spans, rows = timeline.columns, lifetimes(timeline.columns.ops, schedule.num_stages, buffers)
    num_bytes, begin_s = row_bytes(rows, costs, schedule.num_stages, buffers), spans.begin_s
    instants = Instants(spans.ops.cells, spans.posted_s, spans.starts_s, spans.ends_s, begin_s)
    (since_s, since_orders), (until_s, until_orders) = instants.of(rows.since), instants.of(rows.until)
    is_held = (num_bytes > 0) & ((since_s < until_s) | ((since_s == until_s) & (since_orders < until_orders)))
    device_of = np.array(timeline.rank_to_device, np.int32)
    own, devices = np.repeat(device_of, np.diff(rows.begins)), np.unique(device_of[np.diff(spans.ops.begins) > 0])
    changes = np.zeros((len(devices) + 2 * len(own), len(KINDS)), num_bytes.dtype)
    places, kinds = len(devices) + np.flatnonzero(is_held), KIND_OF[rows.parts[is_held]]
    changes[places, kinds] = num_bytes[is_held]
    changes[places + len(own), kinds] = -num_bytes[is_held]
    is_update = rows.parts == UPDATES  # the ranks of a device share one reference model
    for device, stage in {*zip(own[is_update].tolist(), rows.stages[is_update].tolist(), strict=True)}:
        changes[np.searchsorted(devices, device), KINDS.index("reference")] += costs.stages[stage].weight_bytes
    for row in np.flatnonzero(rows.parts == OPTIMIZER):  # of an estimate it contains the gradients
        kept_bytes = costs.stages[rows.stages[row]].kept_gradient_bytes
        changes[len(devices) + row, KINDS.index("optimizer")] -= kept_bytes
        changes[len(devices) + row, KINDS.index("gradients")] += kept_bytes
    is_change = np.append(np.ones(len(devices), np.bool_), np.tile(is_held, 2))
    held = totals(
        np.concatenate([devices, own, own])[is_change],
        np.concatenate([np.full(len(devices), begin_s), since_s, until_s])[is_change],
        np.concatenate([np.zeros(len(devices), np.int32), since_orders, until_orders])[is_change],
        changes[is_change],
    )
    held = held.where(_last_longer(held, begin_s) | _inside_short(timeline, instants, held))
    return held.where(seen_at_once(held, held.amounts.sum(axis=1)))


def require_stages(schedule: Schedule, costs: StageCosts) -> None:
    """Refuse costs of too few stages.

    Raises:
        SimulationError: The schedule has more stages than the costs.
    """
    if schedule.num_stages > costs.num_stages:
        raise SimulationError(
            f"{schedule.name}: got costs ({costs.origin}) of {costs.num_stages} stages, expected {schedule.num_stages}"
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
    """Return the time and memory of an iteration, with a Timeline that includes the memory samples.

    Without bytes in the costs there are neither peaks nor samples.

    Args:
        timeline: The Timeline of `schedule`, lowered, with all pipelines.
        schedule: Schedule with the number of stages.
        costs: Seconds and bytes of every stage.
        cluster: Devices, with their memory.

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
    known = tuple(samples)
    limits = [cluster.devices[sample.device].memory_bytes for sample in known]
    over = [
        (sample.time_s, place, limit)
        for place, (sample, limit) in enumerate(zip(known, limits, strict=True))
        if limit is not None and sample.total_bytes > limit
    ]
    if not over:
        return None
    _, place, limit = min(over)
    taker, sample = _taker(timeline, known, place), known[place]
    return OverCapacity(sample.device, taker.rank, taker.op, sample.time_s, sample.total_bytes, limit)


def fullest_moment(timeline: Timeline) -> FullestMoment | None:
    """Return the first moment of the largest peak of any device; None if the timeline has no memory."""
    known = timeline.memory
    if not known:
        return None
    place = max(range(len(known)), key=lambda place: (known[place].total_bytes, -known[place].time_s))
    taker, sample = _taker(timeline, known, place), known[place]
    return FullestMoment(sample.device, taker.rank, taker.op, sample.time_s, sample.total_bytes)


def _taker(timeline: Timeline, samples: Sequence[MemorySample], place: int) -> Span:
    """Return the op that takes a device to the bytes of a sample: its last op until then that takes memory.

    If the next sample has the same time, the bytes last only for a moment, and an op that continues took none of them.
    """
    device, time_s = samples[place].device, samples[place].time_s
    passes = any((later.device, later.time_s) == (device, time_s) for later in samples[place + 1 : place + 2])
    ranks = [rank for rank, its_device in enumerate(timeline.rank_to_device) if its_device == device]
    spans = chain.from_iterable(map(timeline.columns.of_rank, ranks))
    takers = [(_taken_s(span), index, span) for index, span in enumerate(spans) if not isinstance(span.op, Send)]
    before = [taker for taker in takers if taker[0] <= time_s and not (passes and taker[0] == time_s < taker[2].end_s)]
    return max(before, default=min(takers))[2]


def _taken_s(span: Span) -> float:
    """Return when an op takes its memory: a Recv when it is posted, all else when it starts."""
    return span.posted_s if isinstance(span.op, Recv) else span.start_s


def _last_longer(held: Totals, begin_s: float) -> npt.NDArray[np.bool_]:
    """Return which totals last longer than a rounding, or are followed by another total of the same time."""
    now_s, next_s = held.times[:-1], held.times[1:]
    lasts = (next_s == now_s) | differ(now_s - begin_s, next_s - begin_s) | (held.devices[1:] != held.devices[:-1])
    return np.append(lasts, np.ones(min(1, len(held.times)), np.bool_))


def _inside_short(timeline: Timeline, instants: Instants, held: Totals) -> npt.NDArray[np.bool_]:
    """Return which totals are held at the start of an op that takes no longer than a rounding, and yet holds memory."""
    spans, begin_s = timeline.columns, timeline.columns.begin_s
    is_short = ~differ(spans.starts_s - begin_s, spans.ends_s - begin_s) & holds_inside(spans.ops.codes)
    cells, is_inside = np.flatnonzero(is_short).astype(np.int32), np.zeros(len(held.times), np.bool_)
    devices = np.array(timeline.rank_to_device, np.int32)[spans.ops.rank_of(cells)]
    is_inside[held.places(devices, *instants.of(4 * cells + START))] = True
    return is_inside
