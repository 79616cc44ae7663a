"""Heat maps of time and memory over M and N, and the settings that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import literal
from pipesched.simulator.tuner import Evaluator, Learning, SettingOutcome, pareto, ranked
from pipesched.simulator.views.figure import (
    BLUE,
    DARK_RED,
    FAINT,
    INK,
    PALE_GREY,
    save_figure,
)
from pipesched.simulator.views.heat_map_panel import draw_heat_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = {Learning.PLAIN: "o", Learning.AVERAGING: "^"}


def draw_heat_maps(outcomes: Iterable[SettingOutcome], path: str | Path, title: str = "") -> None:
    """Draw the time and the memory of the best setting at each M and N, and all of them against each other.

    A cell where nothing fits shows what the fastest would take, hatched; one where nothing is known is empty. The
    settings that no other beats in time and memory at once (the Pareto front) are framed, the fastest twice as thick.
    Several pipelines are averaged elastically, which is another training: it is said so, and they are triangles.

    Args:
        outcomes: Outcomes as `search` found them.
        path: The picture (.png, .svg or .pdf).
        title: Above it all.

    Raises:
        SimulationError: The suffix is another one, no setting has a time and a memory, or the file cannot be written.
    """
    save_figure(lambda: heat_map_figure(outcomes, title), path, dpi=140)


def heat_map_figure(outcomes: Iterable[SettingOutcome], title: str = "") -> Figure:
    """Return the picture that `draw_heat_maps` writes.

    Raises:
        SimulationError: No setting has a time and a memory.
    """
    outcomes = _known(tuple(outcomes))
    from pipesched.simulator.views.shown_figure import ShownFigure  # matplotlib takes a second to load

    cells = _cells(outcomes)
    front = pareto(outcomes)
    ms = sorted({m for m, _ in cells}, reverse=True)
    ns = sorted({n for _, n in cells})
    width_in = 2 * (2.75 + 0.75 * len(ns)) + 5.25
    figure = ShownFigure(figsize=(width_in, max(3.8, 2.1 + 0.42 * len(ms))), layout="constrained")
    figure.suptitle(literal(title), x=0.01, ha="left", fontweight="bold", color=INK)
    first, second, third = figure.subplots(1, 3, width_ratios=[2.75 + 0.75 * len(ns)] * 2 + [5.25])
    unit, scale = _unit([_number(o.seconds) for o in cells.values()])
    bytes_unit, bytes_scale = _unit_of_bytes([_number(o.held_bytes) for o in outcomes])
    grid = [[cells.get((m, n)) for n in ns] for m in ms]
    unfit = {
        (row, column)
        for row, outcomes_of_row in enumerate(grid)
        for column, outcome in enumerate(outcomes_of_row)
        if outcome is not None and not outcome.fits
    }
    pipelines = "pipelines N" + ("; above 1: elastic averaging" if max(ns) > 1 else "")
    times = [[_scaled(None if o is None else o.seconds, scale) for o in row] for row in grid]
    sizes = [[_scaled(None if o is None else o.held_bytes, bytes_scale) for o in row] for row in grid]
    for axes, rows, what in (
        (first, times, f"time per batch [{unit}]"),
        (second, sizes, f"memory [{bytes_unit}]"),
    ):
        draw_heat_map(
            axes,
            rows,
            what,
            labels=([str(n) for n in ns], [str(m) for m in ms]),
            names=(pipelines, "micro-batches M of each pipeline"),
            hatched=unfit,
        )
        _frame(axes, front, ms, ns)
    _explain_cells(figure, has_front=bool(front), has_unfit=bool(unfit))
    _scatter(third, outcomes, front, (bytes_unit, unit), (bytes_scale, scale))
    return figure


def _known(outcomes: Sequence[SettingOutcome]) -> tuple[SettingOutcome, ...]:
    """Return those that can be drawn: their time and memory are finite numbers."""
    known = tuple(o for o in outcomes if all(map(math.isfinite, map(_number, (o.seconds, o.held_bytes)))))
    if not known:
        reason = next((f"; of the first: {o.reason}" for o in outcomes if o.reason), "")
        raise SimulationError(
            f"outcomes: got {len(outcomes)} without a time and a memory, expected at least one with both{reason}"
        )
    return known


def _cells(outcomes: Sequence[SettingOutcome]) -> dict[tuple[int, int], SettingOutcome]:
    """Return the best outcome at each (M, N): the fastest that fits, else the fastest."""
    cells: dict[tuple[int, int], SettingOutcome] = {}
    for outcome in ranked(outcomes, Evaluator.SIMULATE):
        cells.setdefault((outcome.setting.num_microbatches, outcome.setting.num_pipelines), outcome)
    return cells


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _scaled(value: float | None, scale: float) -> float:
    return _number(value) / scale


def _unit(times_s: Sequence[float]) -> tuple[str, float]:
    return next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if min(times_s) >= size), ("us", 1e-6))


def _unit_of_bytes(sizes: Sequence[float]) -> tuple[str, float]:
    units = (("GiB", 2.0**30), ("MiB", 2.0**20))
    return next(((unit, size) for unit, size in units if max(sizes) >= size), ("KiB", 2.0**10))


def _frame(axes: Axes, front: Sequence[SettingOutcome], ms: Sequence[int], ns: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle

    for index, outcome in enumerate(front):
        column, row = ns.index(outcome.setting.num_pipelines), ms.index(outcome.setting.num_microbatches)
        axes.add_patch(
            Rectangle(
                (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor=DARK_RED, linewidth=1.4 if index else 2.8
            )
        )


def _explain_cells(figure: Figure, *, has_front: bool, has_unfit: bool) -> None:
    """Explain the frames and the hatching of cells, below all."""
    from matplotlib.patches import Patch

    handles = []
    if has_front:
        handles.append(Patch(facecolor="none", edgecolor=DARK_RED, linewidth=2.8, label="fastest that fits"))
        handles.append(Patch(facecolor="none", edgecolor=DARK_RED, linewidth=1.4, label="Pareto front"))
    if has_unfit:
        handles.append(Patch(facecolor="none", edgecolor=FAINT, linewidth=0, hatch="////", label="does not fit"))
    if handles:
        figure.legend(
            handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=8, labelcolor=INK
        )


def _plain_number(value: float, position: float) -> str:  # noqa: ARG001 -- as matplotlib calls it
    return f"{value:g}"


def _scatter(
    axes: Axes,
    outcomes: Sequence[SettingOutcome],
    front: Sequence[SettingOutcome],
    units: tuple[str, str],
    scales: tuple[float, float],
) -> None:
    """Draw memory (x) and time (y) of every setting, in these units."""
    from matplotlib.ticker import LogLocator

    def points(some: Iterable[SettingOutcome]) -> tuple[list[float], list[float]]:
        shown = list(some)
        return [_scaled(o.held_bytes, scales[0]) for o in shown], [_scaled(o.seconds, scales[1]) for o in shown]

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
        text = f"M={outcome.setting.num_microbatches} N={outcome.setting.num_pipelines}"
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
    axes.set_xlabel(f"memory [{units[0]}]", color=FAINT)
    axes.set_ylabel(f"time per batch [{units[1]}]", color=FAINT)
    axes.set_title("every setting", loc="left", fontsize=10, color=INK)
    axes.tick_params(which="both", colors=FAINT, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False, fontsize=8)  # "best" looks for a place among all points
