"""The panel of a Gantt chart with the memory of each device over time, kind by kind, with its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes

from pipesched.schedules import MemorySample
from pipesched.simulator.analysis import literal, readable_bytes
from pipesched.simulator.views.figure import DARK_RED, FAINT, IDLE, INK
from pipesched.simulator.views.gantt_chart import Chart
from pipesched.simulator.views.op_looks import kind_looks

_FAR = 2.5
"""Largest ratio of a limit to the peak memory at which the limit is drawn; a larger one is only printed."""
_LANE = 0.86
"""Height of a lane in its row."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The memory of one device in one Timeline.

    Attributes:
        timeline: The number of the Timeline.
        samples: At least one, in order of time.
        limit_bytes: Memory of the device, or None without limit.
    """

    timeline: int
    device: int
    samples: tuple[MemorySample, ...]
    limit_bytes: int | None

    @property
    def peak_bytes(self) -> int:
        """The most that the device holds at once."""
        return max(sample.total_bytes for sample in self.samples)


def memory_lanes(chart: Chart, memory_bytes: Sequence[Mapping[int, int]]) -> list[Lane]:
    """Return a lane for each device whose memory is known; lanes of paired Timelines stand together.

    Args:
        chart: The Timelines.
        memory_bytes: Memory of the devices of each Timeline [bytes]; empty without limits.
    """
    lanes = []
    for index, timeline in enumerate(chart.timelines):
        limits = memory_bytes[index] if memory_bytes else {}
        for device in timeline.devices:
            samples = tuple(sample for sample in timeline.memory if sample.device == device)
            if samples:
                lanes.append(Lane(index, device, samples, limits.get(device)))
    return sorted(lanes, key=lambda lane: (lane.device, lane.timeline)) if chart.is_paired else lanes


def lane_name(chart: Chart, lane: Lane) -> str:
    """Return the name of a lane's device, with the name of its Timeline if there are several."""
    return f"device {lane.device}" + (f", {chart.names[lane.timeline]}" if len(chart.timelines) > 1 else "")


def draw_memory(axes: Axes, chart: Chart, lanes: Sequence[Lane], unit_s: float) -> dict[str, Any]:
    """Draw the lanes one under another, all to one scale; return the colours of a legend.

    Args:
        axes: Axes to draw on; their x axis is the time axis of the chart, in units of `unit_s`.
        chart: The Timelines.
        lanes: At least one.
        unit_s: The unit of the axis [s].
    """
    faces: dict[str, Any] = dict(kind_looks(chart.timelines))
    most = max(1, *(lane.peak_bytes for lane in lanes))
    limits = [lane.limit_bytes for lane in lanes if lane.limit_bytes is not None and lane.limit_bytes <= _FAR * most]
    scale = _LANE / (1.05 * max(most, *limits)) if limits else _LANE / most
    axes.set_ylim(len(lanes), 0)
    for row, lane in enumerate(lanes):
        bottom, end = row + (1 + _LANE) / 2, chart.makespans_s[lane.timeline] / unit_s
        axes.broken_barh([(0, end)], (bottom - _LANE, _LANE), facecolors=IDLE, linewidth=0, zorder=1)
        times = [max(0.0, sample.time_s / unit_s) for sample in lane.samples]
        held = [dict(sample.bytes_by_kind) for sample in lane.samples]
        tops = [list(accumulate((kinds.get(kind, 0) for kind in faces), initial=0)) for kinds in held]
        for number, face in enumerate(faces.values()):
            lower, upper = ([bottom - scale * top[number + edge] for top in [*tops, tops[-1]]] for edge in (0, 1))
            axes.fill_between([*times, end], lower, upper, step="post", facecolor=face, linewidth=0, zorder=2)
        if lane.limit_bytes is not None and lane.limit_bytes <= _FAR * most:
            y = bottom - scale * lane.limit_bytes
            axes.plot([0, end], [y, y], color=DARK_RED, linewidth=1.1, linestyle=(0, (4, 2)), zorder=3)
        _write_lane(axes, chart, lane, row + 0.5)
    return {literal(kind): face for kind, face in faces.items()}


def _write_lane(axes: Axes, chart: Chart, lane: Lane, y: float) -> None:
    """Write the device left of its lane, and right of it the peak memory and the limit."""
    beside: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
    name = literal(lane_name(chart, lane))
    axes.annotate(name, (0, y), (-7, 0), ha="right", color=INK, size=8.5, annotation_clip=False, **beside)
    text = readable_bytes(lane.peak_bytes)
    if lane.limit_bytes is not None:
        text += f"\nof {readable_bytes(lane.limit_bytes)}"
    is_over = lane.limit_bytes is not None and lane.peak_bytes > lane.limit_bytes
    colour = DARK_RED if is_over else FAINT
    axes.annotate(text, (1, y), (7, 0), ha="left", color=colour, size=7.5, annotation_clip=False, **beside)
