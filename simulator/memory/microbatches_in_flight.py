"""Micro-batches in flight on each device over a Timeline; no bytes need be known for them.

    1F1B, p = 2, m = 3, rank 0     F0 F1 .. .. B0 B0 F2 B1 B1 .. B2 B2
    in flight from its start on     1  2              2        1        0       from F to the end of B; at 6 s one
                                    0  1  2  3  4  5  6  7  8  9 10 11 12 s     goes as another comes

The unit is what one micro-batch leaves behind on a device's share of the model (one of p stages on p devices): a chunk
counts 1/v where each device has v of them, and a stage held by all p devices counts p. From the end of I to the end of
W, and with R from F to R, it counts what the costs say is held then of the whole; where they say nothing, all of it for
W, and nothing of an input before its R.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from operator import itemgetter

from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline, computes, stage_share
from pipesched.simulator.memory.activations import Part, activation_bytes, activations
from pipesched.simulator.memory.instants import NEVER, Instant, seen_at_once, timed_ops


@dataclass(frozen=True, slots=True)
class InFlight:
    """Micro-batches that `device` holds from `time_s` on."""

    device: int
    time_s: float
    microbatches: float


def in_flight(timeline: Timeline, costs: StageCosts, schedule: Schedule) -> tuple[InFlight, ...]:
    """Return how many micro-batches every device holds whenever it changes.

    Args:
        timeline: Timeline of `schedule`.
        costs: Bytes of every stage, where they are known.
        schedule: Says what a stage is of a device's share of the model.

    Returns:
        Samples in order of device, then time [s], in micro-batches, which may be fractions; the first of a device is of
        the timeline's beginning, and where ops take no time two samples may have one time.
    """
    share = stage_share(schedule)
    begin_s = min((span.posted_s for span in timeline.spans), default=0.0)
    changes: defaultdict[int, list[tuple[Instant, Fraction]]] = defaultdict(list)
    for rank, device in enumerate(timeline.rank_to_device):
        parts = [(part, timed) for timed in timed_ops(timeline.of_rank(rank)) for part in computes(timed.op)]
        changes[device].append((Instant(begin_s), Fraction(0)))
        for part, stage, since, until in activations(parts):
            count = share * _share_held(costs, part, stage)
            changes[device] += [(since, count), (until, -count)]
    return tuple(sample for device in sorted(changes) for sample in _samples(device, changes[device]))


def peak_in_flight(samples: Iterable[InFlight]) -> Mapping[int, InFlight]:
    """Return, per device, the first sample of the most micro-batches."""
    return {
        device: max(group, key=lambda sample: sample.microbatches)
        for device, group in groupby(samples, key=lambda sample: sample.device)
    }


def _share_held(costs: StageCosts, part: Part, stage: int) -> Fraction:
    saved_bytes = activation_bytes(costs, Part.SAVED, stage)
    if part is Part.SAVED:
        return Fraction(1)
    if not saved_bytes:
        return Fraction(part is Part.SAVED_FOR_WEIGHT)
    return Fraction(activation_bytes(costs, part, stage), saved_bytes)


def _samples(device: int, changes: list[tuple[Instant, Fraction]]) -> Iterator[InFlight]:
    """Add up the changes, exactly; those of one instant are one sample."""
    held = Fraction(0)
    ordered = sorted(change for change in changes if change[0] < NEVER)
    for time_s, group in groupby(ordered, key=lambda change: change[0].time_s):
        states = []
        for _, together in groupby(group, key=itemgetter(0)):
            held += sum((count for _, count in together), start=Fraction(0))
            states.append(held)
        for state in seen_at_once(states, float):
            yield InFlight(device, time_s, float(state))
