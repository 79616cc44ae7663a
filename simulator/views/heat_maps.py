"""Heat maps of time and memory over M and N, and the settings that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, FigureBase
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator

from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import literal, size_unit, unit_of
from pipesched.simulator.search import Learning, Outcome
from pipesched.simulator.tuner import Evaluator, pareto, ranked
from pipesched.simulator.views.figure import BLUE, DARK_RED, FAINT, HEAT_MAP, INK, PALE_GREY, WHITE
from pipesched.simulator.views.op_looks import Face, is_dark
from pipesched.simulator.views.shown_figure import ShownFigure

_MARKERS = {Learning.PLAIN: "o", Learning.AVERAGING: "^"}


def heat_map_figure(outcomes: Iterable[Outcome], title: str = "") -> Figure:
    """Return the time and the memory of the best setting at each M and N, and all of them against each other.

    A cell without a fitting setting shows the fastest one, hatched; one without any known setting is empty. The
    settings that no other beats in time and memory at once (the Pareto front) are framed, the fastest twice as thick.
    Without known bytes there is one map, of the time. Several pipelines are averaged elastically, which is another
    training: the legend says so, and they are triangles.

    Raises:
        SimulationError: No setting has a time and a memory.
    """
    grid = setting_grid(outcomes)
    map_in, panels = 2.75 + 0.75 * len(grid.pipelines), len(grid.quantities)
    widths_in = [map_in] * panels + [5.25] * (panels > 1)
    width_in = max(6.0, sum(widths_in))
    figure = ShownFigure(figsize=(width_in, max(3.8, 2.1 + 0.42 * len(grid.microbatches))), layout="constrained")
    figure.suptitle(literal(title), x=0.01, ha="left", fontweight="bold", color=INK)
    panel_axes = figure.subplots(1, len(widths_in), width_ratios=widths_in, squeeze=False)[0]
    hatched = {
        (row, column)
        for row, outcomes_of_row in enumerate(grid.cells)
        for column, outcome in enumerate(outcomes_of_row)
        if outcome is not None and not outcome.fits
    }
    for axes, quantity in zip(panel_axes, grid.quantities, strict=False):
        draw_heat_map(
            axes,
            [[math.nan if outcome is None else quantity.of(outcome) for outcome in row] for row in grid.cells],
            quantity.title,
            labels=grid.labels,
            names=grid.names,
            hatched=hatched,
        )
        _frame(axes, grid)
    frames = {"fastest that fits": 2.8, "Pareto front": 1.4} if grid.front else {}
    explain_cells(figure, frames, has_unfit=bool(hatched))
    if len(panel_axes) > panels:
        _scatter(panel_axes[-1], grid)
    return figure


def _frame(axes: Axes, grid: SettingGrid) -> None:
    for index, outcome in enumerate(grid.front):
        row, column = grid.place(outcome)
        axes.add_patch(
            Rectangle(
                (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor=DARK_RED, linewidth=1.4 if index else 2.8
            )
        )


def _scatter(axes: Axes, grid: SettingGrid) -> None:
    """Draw memory (x) and time (y) of every setting."""
    outcomes, front = grid.outcomes, grid.front

    def points(some: Iterable[Outcome]) -> tuple[list[float], list[float]]:
        shown = list(some)
        return [grid.memory.of(outcome) for outcome in shown], [grid.time.of(outcome) for outcome in shown]

    axes.scatter(
        *points(o for o in outcomes if not o.fits), s=12, marker="x", linewidths=0.8, color=PALE_GREY, label="rejected"
    )
    axes.plot(*points(front), color=DARK_RED, linewidth=1.2, label="Pareto front")
    for training, marker in _MARKERS.items():
        fitting = [o for o in outcomes if o.fits and o.setting.training is training]
        if fitting:
            axes.scatter(*points(fitting), s=14, marker=marker, color=BLUE, label=f"fits, {training}")
            on_front = [o for o in front if o.setting.training is training]
            axes.scatter(*points(on_front), s=28, marker=marker, color=DARK_RED, zorder=3)
    for outcome in (front[0], front[-1]) if front else ():
        text = f"M={outcome.setting.num_each} N={outcome.setting.num_pipelines}"
        (x,), (y,) = points([outcome])
        axes.annotate(text, (x, y), (4, 6), textcoords="offset points", fontsize=8, color=DARK_RED)
    for axis, scale_to, values in zip(
        (axes.xaxis, axes.yaxis), (axes.set_xscale, axes.set_yscale), points(outcomes), strict=True
    ):
        if min(values) <= 0:  # a logarithm has no place for it
            continue
        scale_to("log")
        axis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    axes.set_xlabel(grid.memory.title, color=FAINT)
    axes.set_ylabel(grid.time.title, color=FAINT)
    axes.set_title("every setting", loc="left", fontsize=10, color=INK)
    axes.tick_params(which="both", colors=FAINT, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False, fontsize=8)  # "best" looks for a place among all points


_MOST_NUMBERS, _MOST_LABELS = 16, 40
"""Columns whose cells have room for a number, and columns or rows that all have room for a label."""


def draw_heat_map(
    axes: Axes,
    rows: Sequence[Sequence[float]],
    title: str,
    *,
    labels: tuple[Sequence[str], Sequence[str]],
    names: tuple[str, str],
    hatched: Collection[tuple[int, int]] = (),
    scale: Sequence[float] = (),
) -> AxesImage:
    """Draw a cell for each value, in a logarithmic scale of colours with its bar, and return it; NaN is an empty cell.

    Without enough room, numbers and most labels are left out.

    Args:
        axes: Of a figure with a constrained layout.
        rows: The values, row by row from the top; at least one is a number.
        title: The quantity, with its unit.
        labels: Of the columns, and of the rows.
        names: The quantities of columns and rows.
        hatched: (row, column) of cells that are hatched.
        scale: The values of several maps, rising, which then have one scale and `draw_colour_bar` for all; empty for
            the values of `rows`.
    """
    known = scale or sorted(value for row in rows for value in row if not math.isnan(value))
    face_of, has_room = heat_faces(known), len(labels[0]) <= _MOST_NUMBERS
    image = axes.imshow(rows, cmap=HEAT_MAP, norm=_norm(known), aspect="auto")
    if not scale:
        draw_colour_bar(image, [axes], known)
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            if math.isnan(value):
                continue
            looks: dict[str, Any] = {"color": WHITE if is_dark(face_of(value)) else INK}
            if (row, column) in hatched:
                place = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(place, 1, 1, fill=False, hatch="///", edgecolor=FAINT, linewidth=0))
                paper = {"boxstyle": "round,pad=0.15", "facecolor": WHITE, "edgecolor": "none", "alpha": 0.85}
                looks = {"color": INK, "bbox": paper}
            if has_room:
                axes.text(column, row, short_number(value), ha="center", va="center", fontsize=8, **looks)
    for set_ticks, of_axis in ((axes.set_xticks, labels[0]), (axes.set_yticks, labels[1])):
        step = math.ceil(len(of_axis) / _MOST_LABELS)
        set_ticks(range(0, len(of_axis), step), list(of_axis)[::step])
    axes.set_xlabel(names[0], color=FAINT)
    axes.set_ylabel(names[1], color=FAINT)
    if len(names[1]) == 1:
        axes.yaxis.label.set(rotation="horizontal", verticalalignment="center", horizontalalignment="right")
        axes.yaxis.labelpad = 10  # keeps the label clear of the numbers beside it
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.tick_params(length=0, colors=FAINT)
    axes.spines[:].set_visible(False)
    return image


def draw_colour_bar(image: AxesImage, maps: Sequence[Axes], known: Sequence[float]) -> None:
    """Draw the bar of one scale beside the maps that have it, with the least, the middle and the largest value."""
    bar = maps[0].figure.colorbar(image, ax=maps, pad=0.02, aspect=24)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=2, colors=FAINT)
    shown = sorted({known[0], known[len(known) // 2], known[-1]})
    bar.set_ticks(shown, labels=list(map(short_number, shown)))
    bar.minorticks_off()


def explain_cells(figure: FigureBase, frames: Mapping[str, float], *, has_unfit: bool) -> None:
    """Explain the hatching of cells, and their frames by label and line width, below all."""
    handles = [
        Patch(facecolor="none", edgecolor=DARK_RED, linewidth=width, label=label) for label, width in frames.items()
    ]
    if has_unfit:
        handles.append(Patch(facecolor="none", edgecolor=FAINT, linewidth=0, hatch="////", label="does not fit"))
    if handles:
        figure.legend(
            handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=8, labelcolor=INK
        )


def heat_faces(known: Sequence[float]) -> Callable[[float], Face]:
    """Return a function from a value to its colour, on a scale over the ascending values `known`."""
    norm, colours = _norm(known), colormaps[HEAT_MAP]

    def face_of(value: float) -> Face:
        red, green, blue, _ = map(float, colours(float(norm(value))))
        return red, green, blue

    return face_of


def _norm(known: Sequence[float]) -> Normalize:
    return (LogNorm if 0 < known[0] < known[-1] else Normalize)(known[0], known[-1])


def short_number(value: float) -> str:
    """Return a number of three or four digits, the same for values that differ by rounding errors."""
    value = float(f"{value:.12g}")
    return f"{value:.4g}" if value >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class ScaledQuantity:
    """A quantity of settings, in a readable unit.

    Attributes:
        title: Name of the quantity, with the unit.
        of: Returns the quantity of an outcome, in the unit.
    """

    title: str
    of: Callable[[Outcome], float]


@dataclass(frozen=True, slots=True)
class SettingGrid:
    """Settings by M and N.

    Attributes:
        outcomes: All outcomes with a time and a memory.
        front: Outcomes that no other beats in time and memory at once, the fastest first.
        microbatches: M of each row, the most on top.
        pipelines: N of each column.
        cells: The best outcome of each row and column (the fastest that fits, else the fastest), or None.
        time: Seconds of a batch, in a unit.
        memory: Peak memory of a device, in a unit.
    """

    outcomes: tuple[Outcome, ...]
    front: tuple[Outcome, ...]
    microbatches: tuple[int, ...]
    pipelines: tuple[int, ...]
    cells: tuple[tuple[Outcome | None, ...], ...]
    time: ScaledQuantity
    memory: ScaledQuantity

    @property
    def quantities(self) -> tuple[ScaledQuantity, ...]:
        """Time and memory, or time alone if no outcome has known bytes."""
        return (self.time, self.memory) if any(map(_bytes, self.outcomes)) else (self.time,)

    @property
    def labels(self) -> tuple[list[str], list[str]]:
        """The labels of the columns, and of the rows."""
        return list(map(str, self.pipelines)), list(map(str, self.microbatches))

    @property
    def names(self) -> tuple[str, str]:
        """The quantities of columns and rows."""
        averaged = "; above 1: elastic averaging" if max(self.pipelines) > 1 else ""
        return f"pipelines N{averaged}", "micro-batches M of each pipeline"

    def place(self, outcome: Outcome) -> tuple[int, int]:
        """Return the row and column of an outcome."""
        setting = outcome.setting
        return self.microbatches.index(setting.num_each), self.pipelines.index(setting.num_pipelines)


def setting_grid(outcomes: Iterable[Outcome]) -> SettingGrid:
    """Return the grid of the outcomes whose time and memory are finite numbers.

    Raises:
        SimulationError: No outcome has both.
    """
    given = tuple(outcomes)
    known = tuple(o for o in given if math.isfinite(_seconds(o)) and math.isfinite(_bytes(o)))
    if not known:
        reason = next((f"; of the first: {outcome.reason}" for outcome in given if outcome.reason), "")
        raise SimulationError(
            f"outcomes: got {len(given)} without a time and a peak memory, expected at least one with both{reason}"
        )
    best: dict[tuple[int, int], Outcome] = {}
    for outcome in ranked(known, Evaluator.SIMULATE):
        best.setdefault((outcome.setting.num_each, outcome.setting.num_pipelines), outcome)
    ms, ns = sorted({m for m, _ in best}, reverse=True), sorted({n for _, n in best})
    return SettingGrid(
        outcomes=known,
        front=pareto(known),
        microbatches=tuple(ms),
        pipelines=tuple(ns),
        cells=tuple(tuple(best.get((m, n)) for n in ns) for m in ms),
        time=_quantity("time per batch", *unit_of(min(map(_seconds, best.values()))), _seconds),
        memory=_quantity("memory", *size_unit(max(map(_bytes, known))), _bytes),
    )


def _seconds(outcome: Outcome) -> float:
    return math.nan if outcome.seconds is None else outcome.seconds


def _bytes(outcome: Outcome) -> float:
    return math.nan if outcome.held_bytes is None else outcome.held_bytes


def _quantity(name: str, size: float, unit: str, of: Callable[[Outcome], float]) -> ScaledQuantity:
    return ScaledQuantity(f"{name} [{unit}]", lambda outcome: of(outcome) / size)
