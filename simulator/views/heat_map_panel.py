"""A heat map of one quantity over two: numbers in coloured cells, with a colour bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipesched.simulator.views.figure import DARK_RED, FAINT, HEAT_MAP, INK, WHITE
from pipesched.simulator.views.op_looks import Face, is_dark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import FigureBase
    from matplotlib.image import AxesImage

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
    from matplotlib.patches import Rectangle

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
    from matplotlib.patches import Patch

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
    """Return the colour of each value on the scale of some, in ascending order."""
    from matplotlib import colormaps

    norm, colours = _norm(known), colormaps[HEAT_MAP]

    def face_of(value: float) -> Face:
        red, green, blue, _ = map(float, colours(float(norm(value))))
        return red, green, blue

    return face_of


def _norm(known: Sequence[float]) -> Normalize:
    from matplotlib.colors import LogNorm, Normalize

    return (LogNorm if 0 < known[0] < known[-1] else Normalize)(known[0], known[-1])


def short_number(value: float) -> str:
    """Return a number of three or four digits, the same for values that differ by rounding errors."""
    value = float(f"{value:.12g}")
    return f"{value:.4g}" if value >= 1000 else f"{value:.3g}"
