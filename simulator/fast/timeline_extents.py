"""When the ranks and channels of a Timeline begin and end, and how long its devices work: loops over its columns."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pipesched.schedules import Timeline
from pipesched.schedules.columns import machine_code, op_cells
from pipesched.simulator import SAME

SEND_F, SEND_B, RECV_F, REDUCE = op_cells.SEND_F, op_cells.SEND_B, op_cells.RECV_F, op_cells.REDUCE

Extents = list[tuple[float, float]]
"""When each begins and ends [s]."""


class TimelineExtents(NamedTuple):
    """The extents of a Timeline.

    Attributes:
        ranks: When each rank that has an op begins, and when its last op other than a message is over [s].
        channels: When the first message of each channel begins, and when the last message arrives [s].
    """

    ranks: Extents
    channels: Extents


def timeline_extents(timeline: Timeline) -> TimelineExtents:
    """Return when the ranks and channels of a Timeline begin and end."""
    ops, num_ranks = timeline.columns.ops, timeline.columns.ops.num_ranks
    begins, codes, _, _, others, _ = ops.cells
    starts_s, ends_s = timeline.columns.starts_s, timeline.columns.ends_s
    most = min(ops.counts[SEND_F] + ops.counts[SEND_B], num_ranks * num_ranks)
    of_ranks = np.full(num_ranks, math.inf), np.zeros(num_ranks)
    of_channels = np.full(most, math.inf), np.zeros(most)
    count = machine_code.run_loop(
        find_extents, begins, codes, others, starts_s, ends_s, *of_ranks, *of_channels,
        machine_code.int32s(num_ranks, -1), num_steps=len(codes),
    )  # fmt: skip
    ranks, channels = (
        [(float(begin_s), float(end_s)) for begin_s, end_s in zip(*extents, strict=True)]
        for extents in (of_ranks, (of_channels[0][:count], of_channels[1][:count]))
    )
    return TimelineExtents(ranks, channels)


def find_extents(
    begins: Any, codes: Any, others: Any, starts_s: Any, ends_s: Any,
    rank_begins_s: Any, rank_ends_s: Any, channel_begins_s: Any, channel_ends_s: Any, channel_of: Any,
) -> int:  # fmt: skip
    """Find when ranks and channels begin and end.

    Args:
        begins: R + 1 indices, and then columns of n cells, as in `OpColumns`.
        codes: n codes.
        others: n peers and versions, or empty.
        starts_s: When the op of each cell begins [s].
        ends_s: When it is over [s].
        rank_begins_s: Begin of each rank, infinity at first; to be written, like the next three.
        rank_ends_s: End of each rank, 0 at first.
        channel_begins_s: Begin of each channel, infinity at first.
        channel_ends_s: End of each channel, 0 at first.
        channel_of: Channel to each rank, -1 at first.

    Returns:
        Number of channels.
    """
    num_channels = 0
    for rank in range(len(begins) - 1):
        first = num_channels
        for i in range(begins[rank], begins[rank + 1]):
            rank_begins_s[rank] = min(rank_begins_s[rank], starts_s[i])
            if SEND_F <= codes[i] <= SEND_B:
                if channel_of[others[i]] < first:
                    channel_of[others[i]] = num_channels
                    num_channels += 1
                channel = channel_of[others[i]]
                channel_begins_s[channel] = min(channel_begins_s[channel], starts_s[i])
                channel_ends_s[channel] = max(channel_ends_s[channel], ends_s[i])
            elif codes[i] < SEND_F or codes[i] >= REDUCE:
                rank_ends_s[rank] = max(rank_ends_s[rank], ends_s[i])
    return num_channels


def busy_s(timeline: Timeline, windows: Mapping[int, tuple[float, float]] | None = None) -> float:
    """Return the working time of all devices together [s].

    Args:
        timeline: The Timeline.
        windows: Time window of each device [s], or None for the whole Timeline.
    """
    spans = timeline.columns
    starts_s, ends_s = spans.starts_s, spans.ends_s
    cells: defaultdict[int, list[machine_code.Int64s]] = defaultdict(list)
    for rank, device in enumerate(timeline.rank_to_device):
        cells[device].append(spans.busy_cells(rank))
    lengths_s = []
    for device in timeline.devices:
        from_s, until_s = (-math.inf, math.inf) if windows is None else windows[device]
        works = in_order(cells[device], starts_s)
        length_s = machine_code.run_loop(
            add_lengths, starts_s[works], ends_s[works], from_s, until_s, SAME * timeline.makespan_s,
            num_steps=len(works),
        )  # fmt: skip
        lengths_s.append(length_s)
    return math.fsum(lengths_s)


def idle_share(busy_s: float, num_devices: int, seconds: float) -> float:
    """Return the share of `seconds` in which devices idle.

    Args:
        busy_s: Working time of all devices together.
        num_devices: Number of devices.
        seconds: Length of the time window [s].
    """
    return max(0.0, 1 - busy_s / (num_devices * seconds)) if seconds else 0.0


def in_order(works: list[machine_code.Int64s], starts_s: machine_code.Float64s) -> machine_code.Int64s:
    """Return the cells of works of several ranks in order of their starts."""
    cells = np.concatenate(works)
    begun_s = starts_s[cells]
    return cells if (begun_s[1:] >= begun_s[:-1]).all() else cells[np.argsort(begun_s, kind="stable")]


def add_lengths(starts_s: Any, ends_s: Any, from_s: float, until_s: float, same_s: float) -> float:
    """Return the length of the union of works, in order of their starts [s]; gaps up to `same_s` are ignored."""
    now_s, total_s, rest_s = from_s, 0.0, 0.0
    for work in range(len(starts_s)):
        start_s, end_s = max(starts_s[work], now_s), min(ends_s[work], until_s)
        if start_s - now_s <= same_s:
            start_s = now_s
        if end_s > start_s:
            length_s, before_s = end_s - start_s, total_s
            total_s = before_s + length_s  # rounded once, as `math.fsum` does (Neumaier, 1974)
            if abs(before_s) >= abs(length_s):
                rest_s += (before_s - total_s) + length_s
            else:
                rest_s += (length_s - total_s) + before_s
            now_s = end_s
    return total_s + rest_s
