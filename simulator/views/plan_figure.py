"""The picture of a plan: the nodes with their devices, above the Timeline.

┌ node 0 ────────────┐          ┌ node 1 ────────────┐
│ 0.0  0.1  0.2  0.3 ├─ 3 GB/s ─┤ 1.0  1.1  1.2  1.3 │      each device in the colour of its rank, as copy.rank
└ 300 GB/s ──────────┘          └────────────────────┘
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from pipesched.profiles.clusters import Cluster, Link, all_reduce
from pipesched.schedules import Timeline
from pipesched.simulator.analysis import readable_s
from pipesched.simulator.planner import Request, layout_of, timeline_of
from pipesched.simulator.search import Outcome, Setting
from pipesched.simulator.views.figure import (
    BLUE,
    DARK_BLUE,
    FAINT,
    IDLE,
    INK,
    ORANGE,
    PAPER,
    RED,
    TEAL,
    VIOLET,
    WHITE,
)
from pipesched.simulator.views.gantt_chart import gantt_layout
from pipesched.simulator.views.gantt_figure import draw, width_of
from pipesched.simulator.views.shown_figure import ShownFigure

_COLOURS = (BLUE, VIOLET, RED, ORANGE)
_MESSAGE, _REDUCTION = DARK_BLUE, TEAL
_MOST_ROWS = 16
"""Most ranks in the Timeline; of more, the ranks of the first copy are shown."""
_CELL_IN, _SMALL_IN = 0.62, 0.42  # the latter where there are more nodes than fit beside each other
_GAP_IN, _HEAD_IN, _FOOT_IN, _BETWEEN_IN = 0.16, 0.32, 0.3, 0.95
_TOP_IN, _LAYOUT_IN = 0.75, 11.0
_ARROW: dict[str, Any] = {"arrowstyle": "-|>", "linewidth": 1.2, "mutation_scale": 8, "shrinkA": 0, "shrinkB": 0}


@dataclass(frozen=True, slots=True)
class _Box:
    """One node: its devices, and where it is [inches, upwards]."""

    node: int
    devices: tuple[int, ...]
    columns: int
    cell: float
    x: float
    y: float

    @property
    def width(self) -> float:
        return self.columns * self.cell + (self.columns + 1) * _GAP_IN

    @property
    def height(self) -> float:
        rows = math.ceil(len(self.devices) / self.columns)
        return _HEAD_IN + _FOOT_IN + rows * (self.cell + _GAP_IN)

    def middle(self, device: int) -> tuple[float, float]:
        """Return the middle of a device."""
        row, column = divmod(self.devices.index(device), self.columns)
        step = self.cell + _GAP_IN
        x = self.x + _GAP_IN + column * step + self.cell / 2
        return x, self.y + self.height - _HEAD_IN - row * step - self.cell / 2


def plan_figure(outcome: Outcome, request: Request) -> Figure:
    """Return the nodes with their devices above the Timeline of a plan, as a picture."""
    candidate = outcome.setting
    timeline = timeline_of(candidate, request)
    chart = replace(gantt_layout([_shown(timeline, candidate)]), captions=(_caption(timeline, outcome),))
    boxes = _boxes(request.cluster, width_of(chart))
    height_in = max(box.y + box.height for box in boxes)
    name = request.profile.model.split("/")[-1].split(":")[0]
    title = f"{name} on {len(request.cluster.devices)} devices: {candidate}, {outcome.throughput:.4g} samples/s"
    if len(chart.rows) < len(timeline.rank_to_device):
        title += f"; below, the first of {candidate.width} copies"
    figure = draw(chart, title, above_in=height_in + 0.05)
    _draw_layout(figure, request.cluster, candidate, boxes, _TOP_IN)
    _explain_arrows(figure, candidate, 0.57)
    return figure


def layout_figure(candidate: Setting, cluster: Cluster) -> ShownFigure:
    """Return the nodes with their devices alone."""
    boxes = _boxes(cluster, _LAYOUT_IN)
    height_in = max(box.y + box.height for box in boxes) + _HEAD_IN
    figure = ShownFigure(figsize=(_LAYOUT_IN, height_in), facecolor=WHITE)
    _draw_layout(figure, cluster, candidate, boxes, _HEAD_IN)
    _explain_arrows(figure, candidate, _HEAD_IN / 2)
    return figure


def _draw_layout(figure: Figure, cluster: Cluster, candidate: Setting, boxes: list[_Box], below_in: float) -> None:
    """Draw the nodes, at a distance below the top of the figure."""
    width, height = figure.get_size_inches()
    height_in = max(box.y + box.height for box in boxes)
    axes = figure.add_axes((0, (height - below_in - height_in) / height, 1, height_in / height))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height_in)
    axes.set_axis_off()
    _Placement(axes, cluster, candidate, boxes).draw()


def _caption(timeline: Timeline, outcome: Outcome) -> str:
    """Return the measures of the whole Timeline, as in the planner's table."""
    text = f"{readable_s(timeline.makespan_s)}, bubble_fraction {outcome.bubble_fraction:.1%}"
    if outcome.setting.is_asynchronous and outcome.steady_bubble_fraction is not None:
        text += f"; at its pace, steady_bubble_fraction {outcome.steady_bubble_fraction:.1%}"
    return text


def _shown(timeline: Timeline, candidate: Setting) -> Timeline:
    """Return the Timeline of the ranks that fit into the figure."""
    if len(timeline.rank_to_device) <= _MOST_ROWS:
        return timeline
    spans = tuple(span for span in timeline.spans if span.rank < candidate.num_ranks)
    return replace(timeline, spans=spans, rank_to_device=timeline.rank_to_device[: candidate.num_ranks], memory=())


def _boxes(cluster: Cluster, width_in: float) -> list[_Box]:
    """Place the nodes, in rows from the top left."""
    nodes: dict[int, list[int]] = {}
    for index, device in enumerate(cluster.devices):
        nodes.setdefault(device.node, []).append(index)
    columns = min(4 if len(nodes) > 1 else 8, max(map(len, nodes.values())))
    line_in = len(nodes) * (columns * (_CELL_IN + _GAP_IN) + _BETWEEN_IN)
    cell, between_in = (_CELL_IN, _BETWEEN_IN) if line_in < width_in else (_SMALL_IN, 0.7 * _BETWEEN_IN)
    placed: list[_Box] = []
    x, lines = 0.15, 0
    for node, devices in nodes.items():
        box = _Box(node, tuple(devices), min(columns, len(devices)), cell, x, 0.0)
        if placed and x + box.width > width_in - 0.15:
            x, lines = 0.15, lines + 1
        placed.append(replace(box, x=x, y=-float(lines)))
        x += box.width + between_in
    pitch = max(box.height for box in placed) + 0.25
    return [replace(box, y=(lines + box.y) * pitch + 0.05) for box in placed]


@dataclass(frozen=True, slots=True)
class _Placement:
    """Nodes, devices and links of one plan on axes whose unit is an inch."""

    axes: Axes
    cluster: Cluster
    setting: Setting
    boxes: list[_Box]

    def draw(self) -> None:
        for index, box in enumerate(self.boxes):
            self._draw_node(box)
            if index:
                self._draw_link(self.boxes[index - 1], box)
        self._draw_ways()
        for copy in range(self.setting.width):
            for rank in range(self.setting.num_ranks):
                self._draw_device(rank, copy)

    def _draw_node(self, box: _Box) -> None:
        self.axes.add_patch(
            FancyBboxPatch(
                (box.x, box.y), box.width, box.height, boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=PAPER, edgecolor=FAINT, linewidth=0.9, zorder=1,
            )
        )  # fmt: skip
        self._write(box.x + _GAP_IN, box.y + box.height - _HEAD_IN / 2, f"node {box.node}", size=9, weight="bold")
        if len(box.devices) > 1:
            self._write(box.x + _GAP_IN, box.y + _FOOT_IN / 2, f"inside: {_bandwidth(self.cluster.intra)}", color=FAINT)
        for device in box.devices:
            self._fill(device, IDLE)

    def _draw_link(self, left: _Box, right: _Box) -> None:
        """Draw the link between neighbouring nodes, which represents the links between any two."""
        link = self.cluster.link(left.devices[-1], right.devices[0])
        if left.y != right.y:
            return
        y = left.y + left.height / 2
        self.axes.plot([left.x + left.width, right.x], [y, y], color=FAINT, linewidth=2.2, zorder=1)
        self._write((left.x + left.width + right.x) / 2, y + 0.12, _bandwidth(link), ha="center", color=FAINT)
        nics = sum(set(group) <= set(left.devices) for group in self.cluster.nics)
        if nics:
            text = f"{nics} NIC{'s' if nics > 1 else ''} each"
            self._write((left.x + left.width + right.x) / 2, y - 0.13, text, ha="center", color=FAINT, size=6.5)

    def _draw_device(self, rank: int, copy: int) -> None:
        candidate, device = self.setting, self.setting.device(rank, copy)
        (x, y), cell = self._fill(device, _blend(rank / max(1, candidate.num_ranks - 1)))
        stages = layout_of(candidate).stages[rank]
        text = ",".join(map(str, stages)) if len(stages) <= 3 else f"{stages[0]},{stages[1]},.."
        name, size = (f"stage {text}" if len(stages) == 1 else f"stages\n{text}"), 11.3 * cell
        bold: dict[str, Any] = {"ha": "center", "size": size, "color": WHITE, "weight": "bold", "zorder": 6}
        self._write(x, y + 0.15 * cell, name, **bold)
        if candidate.width > 1:
            self._write(x, y - 0.27 * cell, f"copy {copy}", ha="center", size=size, color=WHITE, zorder=6)

    def _fill(self, device: int, colour: Any) -> tuple[tuple[float, float], float]:
        """Paint a device; return its middle and its size."""
        box = self._box(device)
        self.axes.add_patch(self._square(device, facecolor=colour, linewidth=0, zorder=3))
        return box.middle(device), box.cell

    def _square(self, device: int, **looks: Any) -> Rectangle:
        box = self._box(device)
        (x, y), cell = box.middle(device), box.cell
        return Rectangle((x - cell / 2, y - cell / 2), cell, cell, transform=self.axes.transData, **looks)

    def _draw_ways(self) -> None:
        """Draw the way of the first copy's activations, and of the first stage's sum of gradients."""
        devices = [self.setting.device(rank, 0) for rank in range(self.setting.num_ranks)]
        self._draw_way(list(pairwise(devices)), _MESSAGE, 0.36)
        form = layout_of(self.setting)
        replicas = [self.setting.device(rank, copy) for copy in range(self.setting.width) for rank in form.homes[0]]
        self._draw_way(list(all_reduce(1, replicas, self.cluster).hops), _REDUCTION, -0.36)

    def _draw_way(self, hops: list[tuple[int, int]], colour: str, side: float) -> None:
        """Draw an arrow for each hop, at a given share of the devices' height; arrows pass under other devices."""
        for source, target in hops:
            box = self._box(source)
            (x0, y0), (x1, y1) = box.middle(source), self._box(target).middle(target)
            up, ends = side * box.cell, (self._square(source), self._square(target))
            self.axes.add_patch(
                FancyArrowPatch(
                    (x0, y0 + up), (x1, y1 + up), patchA=ends[0], patchB=ends[1], color=colour, zorder=2, **_ARROW
                )
            )

    def _box(self, device: int) -> _Box:
        return next(box for box in self.boxes if device in box.devices)

    def _write(self, x: float, y: float, text: str, **looks: Any) -> None:
        self.axes.text(x, y, text, **{"size": 7.5, "color": INK, "va": "center", **looks})


def _bandwidth(link: Link) -> str:
    value = link.bandwidth_bytes_per_s
    return "no limit" if math.isinf(value) else f"{value / 1e9:.4g} GB/s"


def _blend(share: float) -> tuple[float, ...]:
    """Return the colour of a rank, from the first's (0) to the last's (1)."""
    place = share * (len(_COLOURS) - 1)
    index = min(int(place), len(_COLOURS) - 2)
    pair = zip(to_rgb(_COLOURS[index]), to_rgb(_COLOURS[index + 1]), strict=True)
    return tuple(a + (b - a) * (place - index) for a, b in pair)


def _explain_arrows(figure: Figure, candidate: Setting, below_in: float) -> None:
    width_in, height_in = figure.get_size_inches()
    texts: dict[str, str] = {}
    if candidate.num_ranks > 1:
        texts[_MESSAGE] = "way of copy 0's activations" if candidate.width > 1 else "way of the activations"
    if candidate.width > 1:
        texts[_REDUCTION] = "sum of stage 0's gradients"
    handles = [
        Line2D([], [], color=colour, linewidth=1.4, marker=">", markersize=4, label=text)
        for colour, text in texts.items()
    ]
    figure.legend(
        handles=handles, loc="center right", bbox_to_anchor=(1 - 0.15 / width_in, 1 - below_in / height_in),
        ncols=2, frameon=False, fontsize=9, labelcolor=FAINT, borderpad=0, borderaxespad=0,
    )  # fmt: skip
