"""Micro-batches in flight on each device over a Timeline; no bytes need be known for them.

    1F1B, p = 2, m = 3, rank 0     F0 F1 .. .. B0 B0 F2 B1 B1 .. B2 B2
    in flight from its start on     1  2              2        1        0       from F to the end of B; at 6 s one
                                    0  1  2  3  4  5  6  7  8  9 10 11 12 s     goes as another comes

The unit is the memory of one micro-batch on a device's share of the model (one of p stages on p devices): a chunk
counts 1/v if each device has v of them, and a stage held by all p devices counts p. From the end of I to the end of
W, and with R from F to R, it counts the share that is then held according to the costs. If the costs lack this share,
the micro-batch counts fully until the end of W, and not at all from F to R.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline
from pipesched.simulator.memory.instants import Instants, Totals, seen_at_once, totals
from pipesched.simulator.memory.lifetimes import Part, activation_bytes, lifetimes

_MOST = 1 << 40
"""Largest common denominator of the shares counted by stages that are added up in 64 bits."""
_MOST_ROWS = 200_000
"""Lifetimes that are added up at once."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Micro-batches that `device` holds from `time_s` on."""

    device: int
    time_s: float
    microbatches: float


def in_flight(timeline: Timeline, costs: StageCosts, schedule: Schedule) -> tuple[InFlight, ...]:
    """Return the number of micro-batches that every device holds, at each time when it changes.

    Args:
        timeline: Timeline of `schedule`.
        costs: Bytes of every stage, where they are known.
        schedule: Schedule with each stage's part of a device's share of the model.

    Returns:
        Samples in order of device, then time [s], in micro-batches, which may be fractions. The first sample of a
        device is at the beginning of the Timeline. Two samples may have the same time if ops take no time.
    """
    parts = _parts_held(timeline, costs, schedule)
    return tuple(_sample(held, unit, at) for held, unit in parts for at in seen_at_once(held, held.amounts))


def peaks_in_flight(timeline: Timeline, costs: StageCosts, schedule: Schedule) -> dict[int, InFlight]:
    """Return, per device, the first sample with the most micro-batches in flight, without building all samples."""
    peaks = {}
    for held, unit in _parts_held(timeline, costs, schedule):
        devices, begins = np.unique(held.devices, return_index=True)
        for device, begin, end in zip(devices.tolist(), begins, [*begins[1:], len(held.devices)], strict=True):
            peaks[device] = _sample(held, unit, begin + int(held.amounts[begin:end].argmax()))
    return peaks


def _sample(held: Totals, unit: int, at: int) -> InFlight:
    return InFlight(int(held.devices[at]), float(held.times[at]), int(held.amounts[at]) / unit)


def _parts_held(timeline: Timeline, costs: StageCosts, schedule: Schedule) -> Iterator[tuple[Totals, int]]:
    """Yield the parts of micro-batches that devices hold at each instant, and the number of parts of a micro-batch.

    Long lists are added up device by device, which takes less memory.
    """
    spans, share, num_stages = timeline.columns, schedule.stage_share, schedule.num_stages
    shares = [
        [share * _share_held(costs, part, stage) for stage in range(num_stages)]
        for part in (Part.INPUT, Part.SAVED, Part.SAVED_FOR_WEIGHT)
    ]
    unit = lcm(*(count.denominator for row in shares for count in row))
    kind = np.int64 if unit * len(spans.ops.codes) < _MOST else object
    counts_of = np.array([[int(count * unit) for count in row] for row in shares], kind)
    rows, device_of = lifetimes(spans.ops, num_stages, None), np.array(timeline.rank_to_device, np.int32)
    instants = Instants(spans.ops.cells, spans.posted_s, spans.starts_s, spans.ends_s, spans.begin_s)
    all_devices = np.array(timeline.devices, np.int32)
    for devices in np.array_split(all_devices, 1 + min(len(all_devices), len(rows.parts) // _MOST_ROWS)):
        ranks = np.flatnonzero(np.isin(device_of, devices))
        places = (np.arange(rows.begins[rank], rows.begins[rank + 1]) for rank in ranks)
        its = np.concatenate([np.arange(0), *places])
        own, counts = (
            np.repeat(device_of[ranks], np.diff(rows.begins)[ranks]),
            counts_of[rows.parts[its], rows.stages[its]],
        )
        (since_s, since_orders), (until_s, until_orders) = instants.of(rows.since[its]), instants.of(rows.until[its])
        nothing = np.zeros(len(devices), np.int32)
        held = totals(
            np.concatenate([devices, own, own]),
            np.concatenate([np.full(len(devices), spans.begin_s), since_s, until_s]),
            np.concatenate([nothing, since_orders, until_orders]),
            np.concatenate([nothing, counts, -counts]),
        )
        yield held, unit


def _share_held(costs: StageCosts, part: Part, stage: int) -> Fraction:
    saved_bytes = activation_bytes(costs, Part.SAVED, stage)
    if part is Part.SAVED:
        return Fraction(1)
    if not saved_bytes:
        return Fraction(part is Part.SAVED_FOR_WEIGHT)
    return Fraction(activation_bytes(costs, part, stage), saved_bytes)
