"""Heat maps of time and memory over M and N, and the settings that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.simulator.analysis import literal
from pipesched.simulator.search import Learning, Outcome
from pipesched.simulator.views.figure import (
    BLUE,
    DARK_RED,
    FAINT,
    INK,
    PALE_GREY,
    save_figure,
)
from pipesched.simulator.views.heat_map_panel import draw_heat_map, explain_cells
from pipesched.simulator.views.setting_grid import SettingGrid, setting_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = {Learning.PLAIN: "o", Learning.AVERAGING: "^"}


def draw_heat_maps(outcomes: Iterable[Outcome], path: str | Path, title: str = "") -> None:
    """Draw the time and the memory of the best setting at each M and N, and all of them against each other.

    A cell without a fitting setting shows the fastest one, hatched; one without any known setting is empty. The
    settings that no other beats in time and memory at once (the Pareto front) are framed, the fastest twice as thick.
    Without known bytes there is one map, of the time.
    Several pipelines are averaged elastically, which is another training: the legend says so, and they are triangles.

    Args:
        outcomes: Outcomes as `search` found them.
        path: The picture (.png, .svg or .pdf).
        title: Above it all.

    Raises:
        SimulationError: The suffix is another one, no setting has a time and a memory, or the file cannot be written.
    """
    save_figure(lambda: heat_map_figure(outcomes, title), path, dpi=140)


def heat_map_figure(outcomes: Iterable[Outcome], title: str = "") -> Figure:
    """Return the picture that `draw_heat_maps` writes.

    Raises:
        SimulationError: No setting has a time and a memory.
    """
    grid = setting_grid(outcomes)
    from pipesched.simulator.views.shown_figure import ShownFigure  # matplotlib takes a second to load

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
    from matplotlib.patches import Rectangle

    for index, outcome in enumerate(grid.front):
        row, column = grid.place(outcome)
        axes.add_patch(
            Rectangle(
                (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor=DARK_RED, linewidth=1.4 if index else 2.8
            )
        )


def _plain_number(value: float, position: float) -> str:  # noqa: ARG001 -- as matplotlib calls it
    return f"{value:g}"


def _scatter(axes: Axes, grid: SettingGrid) -> None:
    """Draw memory (x) and time (y) of every setting."""
    from matplotlib.ticker import LogLocator

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
        axis.set_major_formatter(_plain_number)
        axis.set_minor_formatter(_plain_number)
    axes.set_xlabel(grid.memory.title, color=FAINT)
    axes.set_ylabel(grid.time.title, color=FAINT)
    axes.set_title("every setting", loc="left", fontsize=10, color=INK)
    axes.tick_params(which="both", colors=FAINT, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False, fontsize=8)  # "best" looks for a place among all points
