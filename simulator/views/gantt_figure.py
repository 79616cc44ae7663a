"""A Gantt chart drawn with matplotlib."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pipesched.schedules import Timeline
from pipesched.schedules.ops import Payload
from pipesched.schedules.semantics import transfers
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import idle_parts, literal, readable_s, unit_of
from pipesched.simulator.views.figure import (
    DARK_BLUE,
    DARK_ORANGE,
    DARK_RED,
    FAINT,
    HAND_OVER,
    IDLE,
    INK,
    WHITE,
    FigureStyle,
)
from pipesched.simulator.views.gantt_chart import (
    WHOLE,
    Box,
    Chart,
    ChartOptions,
    Row,
    RunDetails,
    gantt_layout,
    title_of,
)
from pipesched.simulator.views.memory_panel import Lane, draw_memory, lane_name, memory_lanes
from pipesched.simulator.views.op_looks import CAUSE_LOOKS, LEGEND, is_dark, lighter, look
from pipesched.simulator.views.shown_figure import ShownFigure

_TRANSFERS = {Payload.ACTIVATION: ("activation", DARK_BLUE), Payload.GRADIENT: ("gradient", DARK_ORANGE)}
_ENDS: tuple[Any, ...] = ((0, (3.5, 2)), "-", "-.", ":")
_MOST_TRANSFERS = 600  # more are a grey veil
_SMALLEST, _LARGEST = 5.0, 8.5  # points; smaller is not read
_AXIS_IN, _RIGHT_IN, _LEGEND_IN = 0.42, 0.6, 0.26
"""Height of the axis with its times, width right of the rows, and height of a line of the legend."""
_CAPTION_IN = 0.22
"""Height of a line of the caption."""
_LEAST_ROW_IN = 0.08
"""Least height of a row; the rows are at least ten times as wide [inches]."""
_LEAST_TITLE, _LARGEST_TITLE = 8.0, 14.0
_LEGEND_POINTS, _MARK_EM, _LETTER_EM = 9.0, 2.95, 0.6
"""Largest letters of the legend [points]; widths of a mark with its space, and of a letter, in sizes of letters."""


def gantt_figure(
    timelines: Sequence[Timeline],
    title: str = "",
    caption: str = "",
    options: ChartOptions = WHOLE,
    details: Sequence[RunDetails] = (),
) -> Figure:
    """Return the Timelines on one time axis as a picture, with a caption below it.

    Runs of one schedule on the same devices are paired: the rows of a rank stand together. Others stand one under
    another.

    Args:
        timelines: At least one.
        title: Title of the picture; empty: the names of the schedules, the numbers of ranks and micro-batches, and the
            costs.
        caption: Text below the chart.
        options: Visible parts.
        details: Details of each Timeline, for the title and the limits of memory; may be empty.

    Raises:
        SimulationError: There is no Timeline, or nothing in one takes time.
    """
    if not timelines:
        raise SimulationError("timelines: got none, expected at least one; try a simulated or measured Timeline")
    chart = gantt_layout(timelines)
    limits = [run.memory_bytes for run in details]
    return draw(chart, title or title_of(chart, details), caption=caption, options=options, memory_bytes=limits)


def width_of(chart: Chart, from_s: float = 0.0, to_s: float = math.inf) -> float:
    """Return how wide the picture of `chart` between two instants is [inches]."""
    seen = (sum(span.start_s < to_s and span.end_s > from_s for span in works) for works in chart.works)
    return min(18.0, max(11.0, 0.2 * max(seen)))


def draw(
    chart: Chart,
    title: str,
    above_in: float = 0.0,
    caption: str = "",
    options: ChartOptions = WHOLE,
    memory_bytes: Sequence[Mapping[int, int]] = (),
) -> Figure:
    """Return the picture of `chart`, with room between title and chart for something else, and a caption below it."""
    from_s, to_s = chart.interval(options)
    seconds, unit = unit_of(to_s)
    boxes = chart.boxes_between(from_s, to_s)
    lanes = memory_lanes(chart, memory_bytes) if options.has_memory else []
    strips = idle_strips(chart, from_s, to_s) if options.has_idle else []
    if options.from_s or options.to_s is not None:
        shown = f"; shown from {readable_s(from_s)} to {readable_s(to_s)}"
        chart = replace(chart, captions=tuple(caption + shown for caption in chart.captions))

    style = options.style
    width_in = width_of(chart, from_s, to_s) if style.width_in is None else style.width_in / style.scale
    lines = [line for text in caption.splitlines() for line in wrap(literal(text), int(14 * width_in))]
    text_in = 0.12 + _CAPTION_IN * len(lines)
    lanes_in = text_in + _LEGEND_IN * (1 + bool(strips) + bool(lanes))
    room = _room(chart, lanes, style, width_in, above_in, lanes_in)
    figure = ShownFigure(figsize=(width_in, room.height_in), facecolor=WHITE)
    axes = figure.add_axes(room.place(room.chart_in, room.row_in * chart.depth))
    axes.set_xlim(from_s / seconds, to_s / seconds)
    axes.set_ylim(chart.depth, 0)
    _draw_idle(axes, chart, seconds)
    draw_idle_strips(axes, strips, seconds)
    has_hand_over = _draw_hand_overs(axes, chart, seconds)
    has_transfers = not chart.is_paired and _draw_transfers(axes, chart, seconds, from_s, to_s)
    _draw_boxes(axes, boxes, seconds, room.span_in * 72 / (to_s - from_s) * seconds, room.row_in * 72)
    _draw_ends(axes, chart, seconds, from_s, to_s)
    _write_names(axes, chart, room.left_in, to_s)
    _dress(axes, unit)
    _write_head(figure, chart, title, style.scale)
    legends = [_op_handles(boxes, has_transfers=has_transfers, has_hand_over=has_hand_over)]
    if strips:
        seen = {strip.cause for strip in strips}
        looks = ((cause, colour) for cause, (colour, _) in CAUSE_LOOKS.items() if cause in seen)
        legends.append([_word("idle time:"), *(Patch(facecolor=colour, label=cause) for cause, colour in looks)])
    if lanes:
        below = room.place(room.lanes_in, room.lane_in * len(lanes))
        legends.append(_draw_lanes(figure.add_axes(below, sharex=axes), chart, lanes, seconds))
    for line, handles in enumerate(reversed(legends)):
        _write_legend(figure, handles, text_in + line * _LEGEND_IN, style.scale)
    figure.text(0.125 / width_in, 0.12 / room.height_in, "\n".join(lines), color=INK, size=9, va="bottom")
    return figure.restyled(style)


class _Room(NamedTuple):
    """The room of the parts of a picture [inches].

    Attributes:
        width_in, height_in: Size of the picture.
        left_in, span_in: Left edge of the rows, and their width.
        row_in, lane_in: Height of a row, and of a lane of memory.
        lanes_in, chart_in: Lower edges of the lanes and of the rows.
    """

    width_in: float
    height_in: float
    left_in: float
    span_in: float
    row_in: float
    lane_in: float
    lanes_in: float
    chart_in: float

    def place(self, below_in: float, height_in: float) -> tuple[float, float, float, float]:
        """Return the place of axes as wide as the rows, as shares of the picture."""
        return (
            self.left_in / self.width_in,
            below_in / self.height_in,
            self.span_in / self.width_in,
            height_in / self.height_in,
        )


def _room(
    chart: Chart, lanes: Sequence[Lane], style: FigureStyle, width_in: float, above_in: float, lanes_in: float
) -> _Room:
    """Return the room of a picture of this width, with lanes and rows above `lanes_in` [inches].

    Raises:
        SimulationError: The picture is too small for its rows.
    """
    paired_in = 0.1 + 0.07 * max(map(len, chart.names)) if chart.is_paired else 0.0
    left_in = 0.8 + paired_in + (0.5 if _shares_devices(chart) else 0.0)
    left_in = max([left_in, *(0.2 + 0.075 * len(lane_name(chart, lane)) for lane in lanes)])
    span_in = width_in - left_in - (_RIGHT_IN if not lanes else 1.5 * _RIGHT_IN)
    row_in = min(0.52, max(0.28, 3.4 / chart.depth))
    lane_in = min(0.5, max(0.3, 3.4 / max(1, len(lanes))))
    chart_in = lanes_in + lane_in * len(lanes) + _AXIS_IN
    around_in = chart_in + above_in + (0.55 if chart.headings else 0.95)
    if style.height_in is not None:
        row_in = (style.height_in / style.scale - around_in) / chart.depth
    if min(row_in, span_in / 10) < _LEAST_ROW_IN:
        least = (around_in + _LEAST_ROW_IN * chart.depth, width_in - span_in + 10 * _LEAST_ROW_IN)
        height, width = (math.ceil(10 * inches * style.scale) / 10 for inches in least)
        raise SimulationError(
            f"picture: got a size too small for {chart.depth:.3g} rows with text of {style.font_size:g} points, "
            f"expected at least {width:g} x {height:g} inches; try a larger size, a smaller font or fewer ranks"
        )
    return _Room(width_in, around_in + chart.depth * row_in, left_in, span_in, row_in, lane_in, lanes_in, chart_in)


def _shares_devices(chart: Chart) -> bool:
    return any(len(set(timeline.rank_to_device)) < len(timeline.rank_to_device) for timeline in chart.timelines)


def _draw_idle(axes: Axes, chart: Chart, seconds: float) -> None:
    for row in chart.rows:
        end = chart.makespans_s[row.timeline] / seconds
        axes.broken_barh([(0, end)], (row.y - row.height / 2, row.height), facecolors=IDLE, linewidth=0, zorder=1)


def _draw_lanes(axes: Axes, chart: Chart, lanes: Sequence[Lane], seconds: float) -> list[Any]:
    """Draw the memory of the devices; return the handles of its legend."""
    faces = draw_memory(axes, chart, lanes, seconds)
    axes.set_axis_off()
    handles = [_word("memory:"), *(Patch(facecolor=face, label=kind) for kind, face in faces.items())]
    if any(lane.limit_bytes is not None for lane in lanes):
        handles.append(Line2D([], [], color=DARK_RED, linewidth=1.1, linestyle=(0, (4, 2)), label="limit"))
    return handles


def _draw_hand_overs(axes: Axes, chart: Chart, seconds: float) -> bool:
    """Draw the time of each rank's hand-overs, on the idle time and under the boxes."""
    for row in chart.rows:
        timeline = chart.timelines[row.timeline]
        bars = [
            (h.start_s / seconds, (h.end_s - h.start_s) / seconds) for h in timeline.hand_overs if h.rank == row.rank
        ]
        axes.broken_barh(
            bars, (row.y - row.height / 2, row.height), facecolors=HAND_OVER, linewidth=0, zorder=1.5, clip_on=True
        )
    return any(timeline.hand_overs for timeline in chart.timelines)


def _draw_boxes(axes: Axes, boxes: Sequence[Box], seconds: float, unit_points: float, row_points: float) -> None:
    """Draw the boxes, with the micro-batch number in each box where it is readable, at most in the row's font size."""
    corners, faces = [], []
    for box in boxes:
        x0, x1 = box.start_s / seconds, box.end_s / seconds
        y0, y1 = box.y - box.height / 2, box.y + box.height / 2
        corners.append([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
        faces.append(lighter(look(box.op)[1], box.lightness))
    widths = [(shape[1][0] - shape[0][0]) * unit_points for shape in corners]
    edge = min(0.9, 0.06 * sorted(widths)[len(widths) // 2]) if widths else 0.0
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors=WHITE, linewidths=edge, zorder=3))
    digits = max((len(box.text) for box in boxes), default=0)  # all numbers or none, in boxes of a width
    sizes = _row_sizes(boxes, widths, digits)
    for box, face, width in zip(boxes, faces, widths, strict=True):
        fitting = _fitting(width, digits)
        if box.text and fitting >= min(_SMALLEST, 0.6 * box.height * row_points):
            ink, size = WHITE if is_dark(face) else INK, min(sizes[box.row], fitting, 0.6 * box.height * row_points)
            middle = (box.start_s + box.end_s) / 2 / seconds
            axes.text(middle, box.y, box.text, color=ink, size=size, ha="center", va="center_baseline", zorder=4)


def _row_sizes(boxes: Sequence[Box], widths: Sequence[float], digits: int) -> dict[int, float]:
    """Return for each row the font size [points] at which `digits` digits fit into most of its boxes."""
    of_row: defaultdict[int, list[float]] = defaultdict(list)
    for box, width in zip(boxes, widths, strict=True):
        of_row[box.row].append(width)
    return {row: max(_SMALLEST, _fitting(sorted(own)[len(own) // 4], digits)) for row, own in of_row.items()}


def _fitting(width: float, digits: int) -> float:
    """Return the font size [points] at which `digits` digits fit into a box of `width` [points], with a little room."""
    return min(_LARGEST, (width - 1.9) / (0.66 * max(1, digits)))


def _draw_transfers(axes: Axes, chart: Chart, seconds: float, from_s: float, to_s: float) -> bool:
    """Draw a line from the start of each transfer to its arrival, behind the boxes, if there are few enough."""
    at = {(row.timeline, row.rank): row for row in chart.rows}
    lines: dict[Payload, list[list[tuple[float, float]]]] = {payload: [] for payload in Payload}
    for index, timeline in enumerate(chart.timelines):
        for message, send, recv in transfers(timeline.spans):
            if recv.end_s < from_s or send.start_s > to_s:
                continue
            a, b = at[index, send.rank], at[index, recv.rank]
            side = a.height / 2 if b.y > a.y else -a.height / 2
            line = [(send.start_s / seconds, a.y + side), (recv.end_s / seconds, b.y - side)]
            lines[message.payload].append(line)
    if not 0 < sum(map(len, lines.values())) <= _MOST_TRANSFERS:
        return False
    for payload, (_, colour) in _TRANSFERS.items():
        axes.add_collection(LineCollection(lines[payload], colors=colour, linewidths=0.8, alpha=0.75, zorder=2))
        ends = [line[1] for line in lines[payload]]
        axes.scatter([x for x, _ in ends], [y for _, y in ends], s=6, color=colour, linewidths=0, zorder=5)
    return True


def _end_style(chart: Chart, index: int) -> Any:
    return _ENDS[index % len(_ENDS)] if chart.is_paired else "-"


def _draw_ends(axes: Axes, chart: Chart, seconds: float, from_s: float, to_s: float) -> None:
    """Mark the makespan of each Timeline beside its rows; skip makespans outside the axis."""
    for index, makespan_s in enumerate(chart.makespans_s):
        if not from_s <= makespan_s <= to_s:
            continue
        own = [row for row in chart.rows if row.timeline == index]
        heights = [own[0].y - own[0].height / 2 - 0.1, own[-1].y + own[-1].height / 2 + 0.1]
        end = makespan_s / seconds
        style = _end_style(chart, index)
        axes.plot([end, end], heights, color=INK, linewidth=1.2, linestyle=style, zorder=6, clip_on=False)


def _write_names(axes: Axes, chart: Chart, left_in: float, to_s: float) -> None:
    """Write ranks (and names of paired Timelines) left of the rows, busy shares right of them, headings above."""
    beside: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
    beside["annotation_clip"] = False
    for row, works in zip(chart.rows, chart.works, strict=True):
        timeline = chart.timelines[row.timeline]
        device = timeline.rank_to_device[row.rank]
        name = f"rank {row.rank}" + (f" (dev {device})" if timeline.rank_to_device.count(device) > 1 else "")
        busy_s = sum(span.end_s - span.start_s for span in works if span.is_work)
        share = f"{busy_s / chart.makespans_s[row.timeline]:.0%}"
        axes.annotate(share, (1, row.y), (7, 0), ha="left", color=FAINT, size=8.5, **beside)
        if not chart.is_paired:
            axes.annotate(name, (0, row.y), (-7, 0), ha="right", color=INK, size=9.5, **beside)
            continue
        axes.annotate(
            literal(chart.names[row.timeline]), (0, row.y), (-7, 0), ha="right", color=FAINT, size=8.5, **beside
        )
        if row.timeline == 0:
            own = [other.y for other in chart.rows if other.rank == row.rank]
            left = 9 - left_in * 72
            axes.annotate(name, (0, sum(own) / len(own)), (left, 0), ha="left", color=INK, size=9.5, **beside)
    for index, y in enumerate(chart.headings):
        timeline = chart.timelines[index]
        text = literal(f"{timeline.name}, {timeline.source}: {chart.captions[index]}")
        if chart.makespans_s[index] > to_s:
            text += " (continues beyond the axis)"
        axes.annotate(text, (0, y), (0, 0), ha="left", color=INK, size=10, weight="bold", **beside)
    height = chart.rows[0].y - chart.rows[0].height / 2
    axes.annotate("busy", (1, height), (7, 7), ha="left", color=FAINT, size=8.5, **beside)


def _dress(axes: Axes, unit: str) -> None:
    """Remove the frame, except for the time axis."""
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.spines["bottom"].set_position(("outward", 5))
    axes.set_yticks([])
    axes.tick_params(axis="x", colors=FAINT, labelsize=8.5, length=3)
    axes.annotate(
        unit, (1, 0), (17, -15.5), xycoords="axes fraction", textcoords="offset points", color=FAINT, size=8.5,
        va="center", annotation_clip=False,
    )  # fmt: skip


def _write_head(figure: Figure, chart: Chart, title: str, scale: float) -> None:
    """Write the title, and below it a caption per Timeline with its end mark, unless they have own headings."""
    width_in, height_in = figure.get_size_inches()
    left = 0.125 / width_in
    name = literal(title or chart.title)
    size = min(_LARGEST_TITLE, max(_LEAST_TITLE, 72 * (width_in - 0.3) / (0.66 * len(name))))
    figure.text(left, 1 - 0.28 / height_in, name, color=INK, size=size, weight="bold", va="center")
    if chart.headings:
        return
    ends = [
        Line2D(
            [], [], color=INK, linewidth=1.2, linestyle=_end_style(chart, index), label=literal(f"{name}: {caption}")
        )
        for index, (name, caption) in enumerate(zip(chart.names, chart.captions, strict=True))
    ]
    figure.legend(
        handles=ends, loc="center left", bbox_to_anchor=(left, 1 - 0.57 / height_in), ncols=len(ends), frameon=False,
        fontsize=10 * scale, labelcolor=FAINT, handlelength=1.7, handletextpad=0.6, borderpad=0, borderaxespad=0,
    )  # fmt: skip


def _op_handles(boxes: Sequence[Box], *, has_transfers: bool, has_hand_over: bool) -> list[Any]:
    """Return the legend entries of boxes and transfers."""
    looks = sorted({look(box.op) for box in boxes}, key=lambda named: LEGEND.index(named[0]))
    handles: list[Any] = [Patch(facecolor=colour, label=name) for name, colour in looks]
    if has_hand_over:
        handles.append(Patch(facecolor=HAND_OVER, label="hand-over"))
    handles.append(Patch(facecolor=IDLE, label="idle"))
    if has_transfers:
        for name, colour in _TRANSFERS.values():
            handles.append(Line2D([], [], color=colour, linewidth=1, marker="o", markersize=2.5, label=name))
    shades = sorted({box.lightness for box in boxes})
    if len(shades) > 1:
        handles.append(Line2D([], [], linestyle="none", label="lighter: later stage"))
    return handles


def _word(text: str) -> Line2D:
    return Line2D([], [], linestyle="none", label=text)


def _write_legend(figure: Figure, handles: Sequence[Any], above_in: float, scale: float) -> None:
    """Explain colours in one line, at a height above the bottom of the figure; a narrow figure has smaller letters."""
    width_in, height_in = figure.get_size_inches()
    ems = sum(_MARK_EM + _LETTER_EM * len(handle.get_label()) for handle in handles)
    size = min(_LEGEND_POINTS, 72 * (width_in - 0.125) / ems)
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.125 / width_in, above_in / height_in),
        ncols=len(handles), frameon=False, fontsize=size * scale, labelcolor=INK, handlelength=1.1, handleheight=1.0,
        handletextpad=0.5, columnspacing=1.3, borderpad=0, borderaxespad=0,
    )  # fmt: skip


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
