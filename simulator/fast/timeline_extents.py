"""When the ranks and channels of a Timeline begin and end, and how long its devices work."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipesched.schedules import Timeline
from pipesched.schedules.columns import machine_code, op_cells
from pipesched.simulator import SAME


class TimelineExtents(NamedTuple):
    """The extents of a Timeline.

    Attributes:
        ranks: When each rank that has an op begins, and when its last op other than a message is over [s].
        channels: When the first message of each channel begins, and when the last message arrives [s].
    """

    ranks: list[tuple[float, float]]
    channels: list[tuple[float, float]]


def timeline_extents(timeline: Timeline) -> TimelineExtents:
    """Return when the ranks and channels of a Timeline begin and end."""
    spans, extents = timeline.columns, TimelineExtents([], [])
    codes, others = spans.ops.codes, spans.ops.cells.others
    is_message = (codes >= op_cells.SEND_F) & (codes < op_cells.REDUCE)
    is_sent = is_message & (codes <= op_cells.SEND_B)
    for begin, end in pairwise(spans.ops.begins.tolist()):
        if begin == end:
            continue
        starts_s, ends_s = spans.starts_s[begin:end], spans.ends_s[begin:end]
        over_s = ends_s[~is_message[begin:end]].max(initial=0.0)
        extents.ranks.append((float(starts_s.min()), float(over_s)))
        sends = np.flatnonzero(is_sent[begin:end])
        peers = others[begin + sends]
        for peer in {*peers.tolist()}:
            sent = sends[peers == peer]
            extents.channels.append((float(starts_s[sent].min()), float(ends_s[sent].max())))
    return extents


def busy_s(timeline: Timeline, windows: Mapping[int, tuple[float, float]] | None = None) -> float:
    """Return the working time of all devices together [s].

    Args:
        timeline: The Timeline.
        windows: Time window of each device [s], or None for the whole Timeline.
    """
    spans = timeline.columns
    cells: defaultdict[int, list[machine_code.Int64s]] = defaultdict(list)
    for rank, device in enumerate(timeline.rank_to_device):
        cells[device].append(spans.busy_cells(rank))
    lengths_s: list[float] = []
    for device in timeline.devices:
        from_s, until_s = (-math.inf, math.inf) if windows is None else windows[device]
        works = np.concatenate(cells[device])
        begun_s = spans.starts_s[works]
        if (begun_s[1:] < begun_s[:-1]).any():
            works = works[np.argsort(begun_s, kind="stable")]
        ends_s = np.minimum(spans.ends_s[works], until_s)
        before_s = np.maximum.accumulate(np.append(from_s, ends_s))[:-1]  # when all works so far are over
        starts_s = np.maximum(spans.starts_s[works], before_s)
        starts_s = np.where(starts_s - before_s <= SAME * timeline.makespan_s, before_s, starts_s)  # no gap
        lengths_s += np.maximum(0.0, ends_s - starts_s).tolist()
    return math.fsum(lengths_s)


def idle_share(busy_s: float, num_devices: int, seconds: float) -> float:
    """Return the share of `seconds` in which devices idle.

    Args:
        busy_s: Working time of all devices together.
        num_devices: Number of devices.
        seconds: Length of the time window [s].
    """
    return max(0.0, 1 - busy_s / (num_devices * seconds)) if seconds else 0.0
