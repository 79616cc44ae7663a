"""A heat map of one quantity over two: numbers in coloured cells, with a colour bar."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from pipesched.simulator.views.figure import FAINT, HEAT_MAP, INK, WHITE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_heat_map(
    axes: Axes,
    rows: Sequence[Sequence[float]],
    title: str,
    *,
    labels: tuple[Sequence[str], Sequence[str]],
    names: tuple[str, str],
    hatched: Collection[tuple[int, int]] = (),
) -> None:
    """Draw a cell for each value, in a logarithmic scale of colours with its bar; NaN is an empty cell.

    Args:
        axes: Of a figure with a constrained layout.
        rows: The values, row by row from the top; at least one is a number.
        title: What is counted, with its unit.
        labels: Of the columns, and of the rows.
        names: What columns and rows stand for.
        hatched: (row, column) of cells that are hatched.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    known = sorted(value for row in rows for value in row if not math.isnan(value))
    norm = LogNorm(known[0], known[-1]) if 0 < known[0] < known[-1] else None
    image = axes.imshow(rows, cmap=HEAT_MAP, norm=norm, aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=24)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, length=2, colors=FAINT)
    shown = sorted({known[0], known[len(known) // 2], known[-1]})
    bar.set_ticks(shown, labels=list(map(_number, shown)))
    bar.minorticks_off()
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            if math.isnan(value):
                continue
            is_dark = value > known[len(known) // 2] and value > known[-1] ** 0.6 * known[0] ** 0.4
            looks: dict[str, Any] = {"color": WHITE if is_dark else INK}
            if (row, column) in hatched:
                place = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(place, 1, 1, fill=False, hatch="///", edgecolor=FAINT, linewidth=0))
                paper = {"boxstyle": "round,pad=0.15", "facecolor": WHITE, "edgecolor": "none", "alpha": 0.85}
                looks = {"color": INK, "bbox": paper}
            axes.text(column, row, _number(value), ha="center", va="center", fontsize=8, **looks)
    axes.set_xticks(range(len(labels[0])), list(labels[0]))
    axes.set_yticks(range(len(labels[1])), list(labels[1]))
    axes.set_xlabel(names[0], color=FAINT)
    axes.set_ylabel(names[1], color=FAINT)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.tick_params(length=0, colors=FAINT)
    axes.spines[:].set_visible(False)


def _number(value: float) -> str:
    return f"{value:.4g}" if value >= 1000 else f"{value:.3g}"
