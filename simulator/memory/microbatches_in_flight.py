"""Micro-batches in flight on each device over a Timeline; no bytes need be known for them.

    1F1B, p = 2, m = 3, rank 0     F0 F1 .. .. B0 B0 F2 B1 B1 .. B2 B2
    in flight from its start on     1  2              2        1        0       from F to the end of B; at 6 s one
                                    0  1  2  3  4  5  6  7  8  9 10 11 12 s     goes as another comes

The unit is the memory of one micro-batch on a device's share of the model (one of p stages on p devices): a chunk
counts 1/v if each device has v of them, and a stage held by all p devices counts p. From the end of I to the end of
W, and with R from F to R, it counts the share that is then held according to the costs. If the costs do not say it,
it counts fully for W, and an input before its R counts nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import lcm
from typing import Any, final

import numpy as np
import numpy.typing as npt

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.columns import machine_code
from pipesched.simulator.memory.activations import Part, activation_bytes
from pipesched.simulator.memory.flight_loop import Changes, ShareByStage, add_changes, find_changes

_MOST = 1 << 40
"""Largest common denominator of the shares counted by stages that machine code adds up in whole numbers."""


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
    counts = _Counts(timeline, costs, schedule)
    return tuple(
        InFlight(device, float(time_s), int(held) / counts.unit)
        for device in timeline.devices
        for time_s, held in zip(*counts.samples(device), strict=True)
    )


def peaks_in_flight(timeline: Timeline, costs: StageCosts, schedule: Schedule) -> dict[int, InFlight]:
    """Return, per device, the first sample of the most micro-batches of `in_flight`, without making the others."""
    counts = _Counts(timeline, costs, schedule)
    peaks = {}
    for device in timeline.devices:
        times_s, held = counts.samples(device)
        first = int(held.argmax())
        peaks[device] = InFlight(device, float(times_s[first]), int(held[first]) / counts.unit)
    return peaks


def peak_in_flight(samples: Iterable[InFlight]) -> Mapping[int, InFlight]:
    """Return, per device, the first sample of the most micro-batches."""
    return {
        device: max(group, key=lambda sample: sample.microbatches)
        for device, group in groupby(samples, key=lambda sample: sample.device)
    }


@final
class _Counts:
    """The counts of a Timeline's stages, in whole numbers of one unit.

    Attributes:
        unit: Units of one micro-batch.
    """

    def __init__(self, timeline: Timeline, costs: StageCosts, schedule: Schedule) -> None:
        spans, share = timeline.columns, schedule.stage_share
        shares = [
            [share * _share_held(costs, part, stage) for stage in range(spans.ops.num_computed_stages)]
            for part in (Part.INPUT, Part.SAVED, Part.SAVED_FOR_WEIGHT)
        ]
        self.unit = lcm(*(count.denominator for row in shares for count in row))
        self._kind: type = np.int64 if self.unit * len(spans.ops.codes) < _MOST else object
        self._cells = spans.ops.cells
        counts = ShareByStage(*(np.array([int(count * self.unit) for count in row], self._kind) for row in shares))
        num_microbatches = 1 + machine_code.bounds(spans.ops.microbatches)[1]
        seen = machine_code.int32s(len(shares[0]) * num_microbatches)
        self._given = self._cells, spans.starts_s, spans.ends_s, num_microbatches, counts, seen
        self._begin_s = spans.begin_s
        self._ranks: defaultdict[int, list[int]] = defaultdict(list)
        for rank, device in enumerate(timeline.rank_to_device):
            self._ranks[device].append(rank)

    def samples(self, device: int) -> tuple[machine_code.Float64s, npt.NDArray[Any]]:
        """Return when a device holds more or less [s], and how much then [units]."""
        begin = Changes(np.array([self._begin_s]), np.zeros(1, np.int64), self._units(1))
        columns = _in_order([begin, *(self._changes(rank) for rank in self._ranks[device])])
        sample_times_s, held = np.zeros(len(columns[0])), self._units(len(columns[0]))
        num_samples = machine_code.run_loop(add_changes, *columns, sample_times_s, held, num_steps=len(held))
        return sample_times_s[:num_samples], held[:num_samples]

    def _units(self, count: int) -> npt.NDArray[Any]:
        numbers: npt.NDArray[Any] = np.zeros(count, self._kind)
        return numbers

    def _changes(self, rank: int) -> Changes:
        most = int(self._cells.begins[rank + 1] - self._cells.begins[rank])
        changes = Changes(np.zeros(most), np.zeros(most, np.int64), self._units(most))
        count = machine_code.run_loop(find_changes, rank, *self._given, changes, num_steps=most)
        return Changes(changes.times_s[:count], changes.orders[:count], changes.counts[:count])


def _in_order(changes: Sequence[Changes]) -> Changes:
    """Return the changes of some ranks as columns, in order of time."""
    times_s, orders, counts = (np.concatenate(column) for column in zip(*changes, strict=True))
    by_time = np.lexsort((orders, times_s))
    return Changes(times_s[by_time], orders[by_time], counts[by_time])


def _share_held(costs: StageCosts, part: Part, stage: int) -> Fraction:
    saved_bytes = activation_bytes(costs, Part.SAVED, stage)
    if part is Part.SAVED:
        return Fraction(1)
    if not saved_bytes:
        return Fraction(part is Part.SAVED_FOR_WEIGHT)
    return Fraction(activation_bytes(costs, part, stage), saved_bytes)
