"""The picture of a sweep: a heat map for each schedule, and time against memory with the Pareto front.

1f1b            zbv             all settings
p │ . . . .     p │ . . . .     time │ x
│ . . . .       │ . . . .          │  x─x
└────────       └────────          └─────── memory
m               m
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import literal, readable_s, unit_of
from pipesched.simulator.search import COLUMN_HEADINGS, MEASURES, Outcome, ordered_by, pareto_front
from pipesched.simulator.views.figure import (
    CURVE_COLOURS,
    DARK_RED,
    FAINT,
    IDLE,
    INK,
    PALE_GREY,
)
from pipesched.simulator.views.heat_maps import draw_colour_bar, draw_heat_map, explain_cells
from pipesched.simulator.views.shown_figure import ShownFigure

_MOST_MAPS = 8
_MOST_CELLS = 40
"""Most columns or rows of a readable heat map."""
_MANY = 2000
"""More settings are dots of pixels in a picture that is else of lines."""
_MOST_NAMED = 8
"""Points of the front that have a name, beside its first."""
_NEAR = 0.05
"""Share of the width within which two numbers would touch each other; of the height it is twice as much."""
_GIB = 2**30
_FRAME = 2.2
"""Width of the frame of the best cell [points]."""
_MARKERS = ("o", "s", "^", "D")
"""Shapes of the points of schedules: the next shape begins when all colours are used."""
_FRONT_IN, _HANDLE_IN, _LETTER_IN = 5.0, 0.42, 0.055
"""Widths of the panel of all settings, and in its legend of a mark and of a letter [inches]."""
_LONGEST_NAME = 32
"""Letters of a schedule's name in the legend."""
_WIDE = 4
"""Ratio of numbers above which they are drawn on a logarithmic scale."""


def sweep_figure(outcomes: Iterable[Outcome], by: str) -> ShownFigure:
    """Return a heat map of `by` for each schedule, and where bytes are known all settings over their memory.

    The axes of the maps are the two options (counts, parameters, links) with the most values. A cell shows its best
    setting that fits. It is hatched if no setting fits, and empty if none is valid; the best cell of all is framed.

    Args:
        outcomes: The settings.
        by: The measure, a number.

    Raises:
        SimulationError: No setting could be predicted.
    """
    ordered = [outcome for outcome in ordered_by(outcomes, by) if _value(outcome, by) is not None]
    if not ordered:
        raise SimulationError(f"sweep: got no setting with {by}, expected at least one; try other settings")
    maps = _maps(ordered, by)
    has_memory = any(outcome.held_bytes is not None for outcome in ordered)
    columns = min(4, len(maps))
    rows = math.ceil(len(maps) / columns)
    side_in = (max(2.6, 1.0 + 0.42 * len(maps[0].xs)), max(2.4, 1.0 + 0.34 * len(maps[0].ys)))
    width_in = columns * min(side_in[0], 6.0) + (_FRONT_IN if has_memory else 0.8)
    figure = ShownFigure(figsize=(width_in, max(3.8, rows * min(side_in[1], 6.0))), layout="constrained")
    parts = (
        figure.subfigures(1, 2, width_ratios=[width_in - _FRONT_IN, _FRONT_IN], squeeze=False)[0]
        if has_memory
        else [figure]
    )
    left = parts[0]
    axes = left.subplots(rows, columns, squeeze=False).ravel()
    known = sorted(value for drawn in maps for value in drawn.values.values())
    unit, scale = _unit(known[-1], by)
    named = f"{COLUMN_HEADINGS.get(by, by)}{f' [{unit}]' if unit else ''}"
    title = f"{named}, of the best setting in each cell"
    if not all(outcome.fits for outcome in ordered):
        title += "\nSettings over memory are left out, unless no setting of the cell fits."
    left.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
    images = [_draw_map(place, drawn, scale, known) for place, drawn in zip(axes, maps, strict=False)]
    for place in axes[len(maps) :]:
        place.set_axis_off()
    draw_colour_bar(images[0], list(axes), [value / scale for value in known])
    frames = {"best that fits": _FRAME} if any(drawn.best for drawn in maps) else {}
    explain_cells(left, frames, has_unfit=any(drawn.over for drawn in maps))
    if has_memory:
        _draw_front(parts[1], ordered, by, named, scale)
    return figure


@dataclass(frozen=True, slots=True)
class _Map:
    """The heat map of one schedule: the value of the best setting in each cell, and which of them do not fit."""

    schedule: str
    names: tuple[str, str]
    xs: Sequence[Any]
    ys: Sequence[Any]
    values: Mapping[tuple[Any, Any], float]
    over: frozenset[tuple[Any, Any]]
    best: tuple[Any, Any] | None


def _maps(ordered: Sequence[Outcome], by: str) -> list[_Map]:
    """Return the maps of the schedules whose best settings come first."""
    rows = [outcome.setting.to_row() for outcome in ordered]
    all_names = dict.fromkeys(name for row in rows for name in row if name != "schedule")
    values = {name: dict.fromkeys(row.get(name) for row in rows) for name in all_names}
    usual = ["num_microbatches", "num_ranks"]
    names = sorted(values, key=lambda name: (len(values[name]) < 2, name not in usual, -len(values[name])))
    x, y = sorted(names[:2], key=lambda name: -len(values[name]))
    xs, ys = _spread(values[x]), _spread(values[y], is_rising=False)
    maps = []
    for schedule in [*dict.fromkeys(str(row["schedule"]) for row in rows)][:_MOST_MAPS]:
        cells: dict[tuple[Any, Any], Outcome] = {}
        for outcome, row in zip(ordered, rows, strict=True):
            if row["schedule"] == schedule and row.get(x) in xs and row.get(y) in ys:
                cells.setdefault((row.get(x), row.get(y)), outcome)
        maps.append(
            _Map(
                schedule,
                (x, y),
                xs,
                ys,
                {cell: _value(outcome, by) or 0.0 for cell, outcome in cells.items()},
                frozenset(cell for cell, outcome in cells.items() if not outcome.fits),
                next((cell for cell, outcome in cells.items() if outcome is ordered[0] and outcome.fits), None),
            )
        )
    return maps


def _spread(values: Iterable[Any], *, is_rising: bool = True) -> list[Any]:
    """Return values in order, or a selection if there are too many."""
    known = sorted(values, key=lambda value: (value is not None, value), reverse=not is_rising)
    step = math.ceil(len(known) / _MOST_CELLS)
    return known[::step]


def _value(outcome: Outcome, by: str) -> float | None:
    value = MEASURES[by](outcome)
    return value if isinstance(value, int | float) else None


def _unit(most: float, by: str) -> tuple[str, float]:
    """Return the unit in which people read a measure up to `most`, and its size."""
    if by.endswith("_fraction"):
        return "%", 0.01
    if by.endswith("_bytes"):
        return "GiB", _GIB
    scale, unit = unit_of(most)
    return unit, scale


def _draw_map(axes: Axes, drawn: _Map, scale: float, known: Sequence[float]) -> AxesImage:
    cells = [[drawn.values.get((x, y), math.nan) / scale for x in drawn.xs] for y in drawn.ys]
    axes.set_facecolor(IDLE)
    image = draw_heat_map(
        axes,
        cells,
        literal(drawn.schedule),
        labels=([_label(drawn.names[0], x) for x in drawn.xs], [_label(drawn.names[1], y) for y in drawn.ys]),
        names=(_heading(drawn.names[0]), _heading(drawn.names[1])),
        hatched={(drawn.ys.index(y), drawn.xs.index(x)) for x, y in drawn.over},
        scale=[value / scale for value in known],
    )
    if drawn.best is not None:
        corner = drawn.xs.index(drawn.best[0]) - 0.5, drawn.ys.index(drawn.best[1]) - 0.5
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=DARK_RED, linewidth=_FRAME, clip_on=False))
    return image


def _heading(name: str) -> str:
    return literal(COLUMN_HEADINGS.get(name, name))


def _label(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "bandwidth_bytes_per_s" and value is not None:
        return f"{value / 1e9:.4g} GB/s"
    if name == "latency_s" and value is not None:
        return readable_s(value)
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _draw_front(figure: FigureBase, ordered: Sequence[Outcome], by: str, named: str, scale: float) -> None:
    """Draw every setting over its memory (crosses exceed the limit), and the front, with numbers explained below."""
    axes = figure.subplots()

    def points(some: Iterable[Outcome]) -> tuple[list[float], list[float]]:
        known = [outcome for outcome in some if outcome.held_bytes is not None]
        return [(o.held_bytes or 0) / _GIB for o in known], [(_value(o, by) or 0.0) / scale for o in known]

    is_many = len(ordered) > _MANY
    schedules = [*dict.fromkeys(outcome.setting.schedule for outcome in ordered)]
    for index, schedule in enumerate(schedules):
        colour = CURVE_COLOURS[1 + index % (len(CURVE_COLOURS) - 1)]
        fitting = [o for o in ordered if o.setting.schedule == schedule and o.fits]
        marker = _MARKERS[index // (len(CURVE_COLOURS) - 1) % len(_MARKERS)]
        name = _shortened(literal(schedule))
        axes.scatter(
            *points(fitting), s=11, marker=marker, color=colour, alpha=0.75, linewidths=0, label=name,
            rasterized=is_many,
        )  # fmt: skip
    over = [outcome for outcome in ordered if not outcome.fits]
    if over:
        axes.scatter(
            *points(over), s=9, marker="x", linewidths=0.7, color=PALE_GREY, label="over memory", rasterized=is_many
        )
    front = pareto_front(ordered, by)
    axes.plot(*points(front), color=DARK_RED, linewidth=1.2, marker="o", markersize=3.5, label="Pareto front")
    named_points = list(
        dict.fromkeys(front[i * (len(front) - 1) // _MOST_NAMED] for i in range(_MOST_NAMED + 1) if front)
    )
    for number, outcome in enumerate(named_points, start=1):
        setting = replace(outcome.setting, schedule=_shortened(literal(outcome.setting.schedule)))
        name = f"{number}: {setting.label}"
        axes.plot([], [], color=DARK_RED, linestyle="none", marker="o", markersize=3.5, label=name)
    held, values = points(ordered)
    for axis, set_scale, numbers in ((axes.xaxis, axes.set_xscale, held), (axes.yaxis, axes.set_yscale, values)):
        if min(numbers) > 0 and max(numbers) > _WIDE * min(numbers):
            set_scale("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(NullLocator())
    axes.margins(0.08)
    _number_points(axes, [*zip(*points(named_points), strict=True)])
    axes.set_xlabel("peak memory of the fullest device [GiB]", color=FAINT, fontsize=8)
    axes.set_ylabel(named, color=FAINT, fontsize=8)
    axes.set_title("every setting", loc="left", fontsize=9, color=INK)
    axes.tick_params(which="both", colors=FAINT, labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    longest = max(map(len, axes.get_legend_handles_labels()[1]))
    ncols = max(1, min(4, int(_FRONT_IN / (_HANDLE_IN + _LETTER_IN * longest))))
    figure.legend(loc="outside lower center", ncols=ncols, frameon=False, fontsize=7)


def _shortened(name: str) -> str:
    """Return a name, without its middle where it is long."""
    half = _LONGEST_NAME // 2 - 1
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}..{name[-half:]}"


def _number_points(axes: Axes, places: Sequence[tuple[float, float]]) -> None:
    """Write the numbers of points of a front left of them and below, where nothing is; near ones share a place.

    Args:
        axes: With their scales.
        places: The points, by rising y and falling x.
    """
    to_shares = axes.transScale + axes.transLimits
    groups: list[list[int]] = []
    for number, place in enumerate(places):
        x, y = to_shares.transform(place)
        if groups:
            last_x, last_y = to_shares.transform(places[groups[-1][-1]])
            if abs(x - last_x) < _NEAR and abs(y - last_y) < 2 * _NEAR:
                groups[-1].append(number)
                continue
        groups.append([number])
    for group in groups:
        corner = min(places[number][0] for number in group), min(places[number][1] for number in group)
        text = ", ".join(str(number + 1) for number in group)
        axes.annotate(
            text, corner, (-3, -3), textcoords="offset points", ha="right", va="top", fontsize=7, color=DARK_RED
        )
