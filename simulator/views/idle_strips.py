"""The strips of a Gantt chart that colour the idle time of each device by its causes, where no box is drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from pipesched.simulator.analysis import idle_parts
from pipesched.simulator.views.gantt_chart import Chart, Row
from pipesched.simulator.views.op_looks import CAUSE_LOOKS

_SHARE = 1 / 3
"""Of the height of a row."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The parts of a row's idle time that one cause is to blame for, each from when and how long [s]."""

    row: Row
    cause: str
    parts: tuple[tuple[float, float], ...]


def idle_strips(chart: Chart, from_s: float, to_s: float) -> list[Strip]:
    """Return the strips that are seen between two instants."""
    strips = []
    parts_of = [idle_parts(timeline) for timeline in chart.timelines]
    for row in chart.rows:
        by_cause: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for cause, start_s, end_s in parts_of[row.timeline][chart.timelines[row.timeline].rank_to_device[row.rank]]:
            if start_s < to_s and end_s > from_s:
                by_cause[cause].append((start_s, end_s - start_s))
        strips += [Strip(row, cause, tuple(parts)) for cause, parts in by_cause.items()]
    return strips


def draw_idle_strips(axes: Axes, strips: Sequence[Strip], unit_s: float) -> None:
    """Draw strips on an axis that counts `unit_s` seconds."""
    for strip in strips:
        bars = [(start_s / unit_s, seconds / unit_s) for start_s, seconds in strip.parts]
        place = (strip.row.y - _SHARE * strip.row.height / 2, _SHARE * strip.row.height)
        axes.broken_barh(bars, place, facecolors=CAUSE_LOOKS[strip.cause][0], linewidth=0, zorder=1.6)
