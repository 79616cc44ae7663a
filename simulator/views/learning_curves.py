"""Learning curves: the losses of several runs against steps, and against predicted wall time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import literal, unit_of
from pipesched.simulator.views.figure import BLACK, CURVE_COLOURS, WHITE, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_DASHES = ("-", "--", "-.", ":")
_FAR_ABOVE = 10.0
"""Largest multiple of the first loss that is shown."""
_MARGIN = 0.05
"""Share of the axis that stays empty above and below the curves."""
_NOISE = 0.02
"""Share of the raw losses that may lie above the axis, and as many below it."""
_WIDE = 4
"""Ratio of losses above which they are drawn on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The learning curve of one training run: its losses, step by step.

    Attributes:
        name: Name of the run's schedule.
        losses: The loss of every step, as far as the run came.
        times_s: When each was known [s]; None where no time was predicted.
        has_diverged: Whether the run was ended because of its last loss.
        batches: Batches of samples that a step takes: one of each pipeline, where several are averaged.
    """

    name: str
    losses: tuple[float, ...]
    times_s: tuple[float, ...] | None = None
    has_diverged: bool = False
    batches: int = 1


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Return, for each step, the mean of the last `window` losses, or of all losses so far if there are fewer."""
    sums = [0.0, *accumulate(losses)]
    return [(sums[end] - sums[max(0, end - window)]) / min(end, window) for end in range(1, len(sums))]


def window_of(num_steps: int) -> int:
    """Return over how many steps the losses of a run are smoothed: a twentieth of them."""
    return max(1, num_steps // 20)


def draw_curves(curves: Sequence[Curve], path: Path | str, title: str = "", target_loss: float | None = None) -> None:
    """Draw the losses against steps and, if times are known, against time, and write the picture (.png, .svg, .pdf).

    Where a run takes several batches in a step, its steps are as far apart as others need for as many samples.

    The smoothed curve is the mean of the last twentieth of the steps; the raw one is thin. A cross ends a run that
    diverged.

    Raises:
        SimulationError: The suffix is another one, no loss is a finite number, a run has not as many times as losses,
            or the file cannot be written.
    """
    save_figure(lambda: learning_curve_figure(curves, title, target_loss), path)


def learning_curve_figure(curves: Sequence[Curve], title: str = "", target_loss: float | None = None) -> Figure:
    """Return the picture that `draw_curves` writes.

    Raises:
        SimulationError: No loss is a finite number, or a run has not as many times as losses.
    """
    shown = [curve for curve in curves if curve.losses]
    if not shown:
        raise SimulationError("curves: got none with a step, expected at least one; train for a step")
    _require_drawable(shown)
    from pipesched.simulator.views.shown_figure import ShownFigure  # matplotlib takes a second to load

    timed = any(curve.times_s for curve in shown)
    num_rows = math.ceil(len(shown) / 5)
    figure = ShownFigure(figsize=(11.0 if timed else 6.4, 4.2 + 0.22 * num_rows), facecolor=WHITE, layout="constrained")
    panels = figure.subplots(1, 1 + timed, sharey=True, squeeze=False)[0]
    steps = [[float(step * curve.batches) for step in range(len(curve.losses))] for curve in shown]
    handles = _draw(panels[0], shown, steps)
    panels[0].set_xlabel("optimizer step" if all(curve.batches == 1 for curve in shown) else "batches of samples")
    panels[0].xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_ylabel("training loss")
    if timed:
        seconds, unit = unit_of(max(curve.times_s[-1] for curve in shown if curve.times_s))
        _draw(panels[1], shown, [[time_s / seconds for time_s in curve.times_s or ()] for curve in shown])
        panels[1].set_xlabel(f"predicted wall time [{unit}]")
    for axes in panels:
        _dress(axes, shown, target_loss)
    figure.suptitle(literal(title), x=0.01, ha="left", fontsize=11)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(shown)), frameon=False, fontsize=9)
    return figure


def _require_drawable(curves: Sequence[Curve]) -> None:
    for curve in curves:
        if curve.times_s and len(curve.times_s) != len(curve.losses):
            raise SimulationError(
                f"{curve.name}: got {len(curve.times_s)} times, expected {len(curve.losses)}, one for each loss"
            )
    if not any(map(math.isfinite, (loss for curve in curves for loss in curve.losses))):
        raise SimulationError(
            "curves: got no loss that is a finite number, expected at least one; try a smaller learning rate"
        )


def _draw(axes: Axes, curves: Sequence[Curve], places: Sequence[Sequence[float]]) -> list[Line2D]:
    """Draw each curve that has places on the x axis; return the lines of the smoothed curves."""
    window = window_of(max(len(curve.losses) for curve in curves))
    top = _range(curves)[1]
    handles = []
    for index, (curve, xs) in enumerate(zip(curves, places, strict=True)):
        if not xs:
            continue
        colour, dashes = CURVE_COLOURS[index % len(CURVE_COLOURS)], _DASHES[index % len(_DASHES)]
        losses = [loss if math.isfinite(loss) else math.nan for loss in curve.losses]
        axes.plot(xs, losses, color=colour, linewidth=0.6, alpha=0.25)
        finite = [loss for loss in losses if not math.isnan(loss)]
        ys = smoothed(finite, window)
        handles += axes.plot(
            xs[: len(ys)], ys, color=colour, linewidth=1.6, linestyle=dashes, label=literal(curve.name)
        )
        if curve.has_diverged:
            axes.plot(
                xs[-1],
                min([top, *ys[-1:]]),
                marker="x",
                color=colour,
                markersize=8,
                markeredgewidth=2,
                clip_on=False,
            )
    return handles


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the lowest and the highest loss to show.

    Every smoothed curve and nearly all raw losses are shown, up to a multiple of the first loss.
    """
    finite = [[loss for loss in curve.losses if math.isfinite(loss)] for curve in curves]
    window = window_of(max(len(curve.losses) for curve in curves))
    smooth = [loss for losses in finite for loss in smoothed(losses, window)]
    raw = sorted(loss for losses in finite for loss in losses)
    left_out = int(_NOISE * len(raw))
    first = next(losses[0] for losses in finite if losses)
    low, high = min(raw[left_out], *smooth), max(raw[-1 - left_out], *smooth)
    return low, max(low, min(high, _FAR_ABOVE * first)) if first > 0 else high


def _dress(axes: Axes, curves: Sequence[Curve], target_loss: float | None) -> None:
    low, high = _range(curves)
    if target_loss is not None:
        low, high = min(low, target_loss), max(high, target_loss)
    if low > 0 and high > _WIDE * low:
        from matplotlib.ticker import LogLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        room = (high / low) ** _MARGIN
        axes.set_ylim(low / room, high * room)
    else:
        room = _MARGIN * ((high - low) or abs(high) or 1.0)
        axes.set_ylim(low - room, high + room)
    axes.set_xlim(left=0)
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if target_loss is not None:
        axes.axhline(target_loss, color=BLACK, linewidth=0.8, linestyle=(0, (1, 2)))
