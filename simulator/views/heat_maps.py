"""Heat maps of time and memory over M and N, and the settings that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import literal
from pipesched.simulator.tuner import Evaluator, Learning, SettingOutcome, pareto, ranked
from pipesched.simulator.views.figure import (
    BLUE,
    DARK_RED,
    FAINT,
    HEAT_MAP,
    INK,
    PALE_GREY,
    WHITE,
    save_figure,
)

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
    width_in = 2 * (2.2 + 0.72 * len(ns)) + 5.2
    figure = ShownFigure(figsize=(width_in, max(3.6, 1.8 + 0.42 * len(ms))), layout="constrained")
    figure.suptitle(literal(title), x=0.01, ha="left", fontweight="bold", color=INK)
    first, second, third = figure.subplots(1, 3, width_ratios=[2.2 + 0.72 * len(ns)] * 2 + [5.2])
    unit, scale = _unit([_number(o.seconds) for o in cells.values()])
    _heat_map(
        first, cells, ms, ns, [_scaled(o.seconds, scale) for o in _grid(cells, ms, ns)], f"time per batch [{unit}]"
    )
    _heat_map(second, cells, ms, ns, [_scaled(o.held_bytes, 2**20) for o in _grid(cells, ms, ns)], "memory [MiB]")
    for axes in (first, second):
        _frame(axes, front, ms, ns)
    _scatter(third, outcomes, front, unit, scale)
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


def _grid(cells: dict[tuple[int, int], SettingOutcome], ms: Sequence[int], ns: Sequence[int]) -> list[Any]:
    """Return the outcomes row by row; where there is none, one that knows nothing."""
    nothing = SettingOutcome(next(iter(cells.values())).setting)
    return [cells.get((m, n), nothing) for m in ms for n in ns]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _scaled(value: float | None, scale: float) -> float:
    return _number(value) / scale


def _unit(times_s: Sequence[float]) -> tuple[str, float]:
    return next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if min(times_s) >= size), ("us", 1e-6))


def _heat_map(
    axes: Axes,
    cells: dict[tuple[int, int], SettingOutcome],
    ms: Sequence[int],
    ns: Sequence[int],
    values: Sequence[float],
    title: str,
) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    known = [value for value in values if value == value]
    norm = LogNorm(min(known), max(known)) if 0 < min(known) < max(known) else None
    rows = [values[start : start + len(ns)] for start in range(0, len(values), len(ns))]
    axes.imshow(rows, cmap=HEAT_MAP, norm=norm, aspect="auto")
    middle = sorted(known)[len(known) // 2]
    top = max(known)
    for row, m in enumerate(ms):
        for column, n in enumerate(ns):
            value = rows[row][column]
            if value != value:
                continue
            is_dark = value > middle and value > top**0.6 * min(known) ** 0.4
            axes.text(
                column,
                row,
                f"{value:.4g}" if value >= 1000 else f"{value:.3g}",
                ha="center",
                va="center",
                fontsize=8,
                color=WHITE if is_dark else INK,
            )
            if not cells[m, n].fits:
                axes.add_patch(
                    Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="///", edgecolor=FAINT, linewidth=0)
                )
    axes.set_xticks(range(len(ns)), [str(n) for n in ns])
    axes.set_yticks(range(len(ms)), [str(m) for m in ms])
    axes.set_xlabel("pipelines N" + ("; above 1: elastic averaging" if max(ns) > 1 else ""), color=FAINT)
    axes.set_ylabel("micro-batches M of each pipeline", color=FAINT)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.tick_params(length=0, colors=FAINT)
    axes.spines[:].set_visible(False)


def _frame(axes: Axes, front: Sequence[SettingOutcome], ms: Sequence[int], ns: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle

    for index, outcome in enumerate(front):
        column, row = ns.index(outcome.setting.num_pipelines), ms.index(outcome.setting.num_microbatches)
        axes.add_patch(
            Rectangle(
                (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor=DARK_RED, linewidth=1.4 if index else 2.8
            )
        )


def _plain_number(value: float, position: float) -> str:  # noqa: ARG001 -- as matplotlib calls it
    return f"{value:g}"


def _scatter(
    axes: Axes, outcomes: Sequence[SettingOutcome], front: Sequence[SettingOutcome], unit: str, scale: float
) -> None:
    from matplotlib.ticker import LogLocator

    def points(some: Iterable[SettingOutcome]) -> tuple[list[float], list[float]]:
        shown = list(some)
        return [_scaled(o.held_bytes, 2**20) for o in shown], [_scaled(o.seconds, scale) for o in shown]

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
    axes.set_xlabel("memory [MiB]", color=FAINT)
    axes.set_ylabel(f"time per batch [{unit}]", color=FAINT)
    axes.set_title("every setting", loc="left", fontsize=10, color=INK)
    axes.tick_params(which="both", colors=FAINT, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False, fontsize=8)  # "best" looks for a place among all points
