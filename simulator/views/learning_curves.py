"""Curves and bars: losses of trainings, goodput over the checkpoint interval, costs, and the lags of a race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from pipesched.profiles.costs import Profile
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import duration_unit, literal, readable_duration, unit_of
from pipesched.simulator.failures import CheckpointedTraining, IntervalGoodput
from pipesched.simulator.search import Lag
from pipesched.simulator.views.figure import (
    BLACK,
    BLUE,
    CURVE_COLOURS,
    DARK_RED,
    FAINT,
    GREY,
    INK,
    ORANGE,
    PINK,
    TEAL,
    VIOLET,
    WHITE,
    YELLOW,
)

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
        runs: The losses of each of several runs whose mean `losses` is; empty for one run.
    """

    name: str
    losses: tuple[float, ...]
    times_s: tuple[float, ...] | None = None
    has_diverged: bool = False
    batches: int = 1
    runs: tuple[tuple[float, ...], ...] = ()


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean of the curves of one schedule with several seeds, with a band.

    The mean at a step is over the runs that reached the step.
    """
    if len(curves) == 1:
        return curves[0]
    runs = tuple(curve.losses for curve in curves)
    means = [fmean(loss for loss in step if loss is not None) for step in zip_longest(*runs)]
    longest = max(curves, key=lambda curve: len(curve.losses))
    has_diverged = any(curve.has_diverged for curve in curves)
    return replace(longest, losses=tuple(means), has_diverged=has_diverged, runs=runs)


def _band(curve: Curve, window: int) -> tuple[list[float], list[float]]:
    """Return the smoothed mean minus, and plus, the standard deviation of the smoothed runs, step by step."""
    runs = [smoothed([loss for loss in losses if math.isfinite(loss)], window) for losses in curve.runs]
    low, high = [], []
    for step in zip_longest(*runs):
        losses = [loss for loss in step if loss is not None]
        spread = stdev(losses) if len(losses) > 1 else 0.0
        low.append(fmean(losses) - spread)
        high.append(fmean(losses) + spread)
    return low, high


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Return, for each step, the mean of the last `window` losses, or of all losses so far if there are fewer."""
    sums = [0.0, *accumulate(losses)]
    return [(sums[end] - sums[max(0, end - window)]) / min(end, window) for end in range(1, len(sums))]


def window_of(num_steps: int) -> int:
    """Return the width of the smoothing window of a run: a twentieth of its steps, at least 1."""
    return max(1, num_steps // 20)


def learning_curve_figure(curves: Sequence[Curve], title: str = "", target_loss: float | None = None) -> Figure:
    """Return the losses against steps and, if times are known, against time.

    If a run takes several batches per step, its steps are drawn that many batches apart. The smoothed curve is the mean
    of the last twentieth of the steps; the raw one is thin. A cross ends a run that diverged.

    Raises:
        SimulationError: No loss is a finite number, or a run has not as many times as losses.
    """
    shown = [curve for curve in curves if curve.losses]
    if not shown:
        raise SimulationError("curves: got no curve with a step, expected at least one; train for a step")
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
        raise SimulationError("curves: got no finite loss, expected at least one; try a smaller learning rate")


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
        if curve.runs:
            low, high = _band(curve, window)
            axes.fill_between(xs[: len(low)], low, high, color=colour, alpha=0.2, linewidth=0)
        else:
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

    Every smoothed curve, every band and nearly all raw losses are shown, up to a multiple of the first loss; a band
    down to half of the lowest smoothed loss, as its lower edge may be 0.
    """
    runs = [losses for curve in curves for losses in curve.runs or (curve.losses,)]
    finite = [[loss for loss in losses if math.isfinite(loss)] for losses in runs]
    window = window_of(max(len(curve.losses) for curve in curves))
    smooth = [loss for losses in finite for loss in smoothed(losses, window)]
    raw = sorted(loss for losses in finite for loss in losses)
    left_out = int(_NOISE * len(raw))
    first = next(losses[0] for losses in finite if losses)
    low, high = min(raw[left_out], *smooth), max(raw[-1 - left_out], *smooth)
    for lows, highs in (_band(curve, window) for curve in curves if curve.runs):
        low, high = min(low, max(min(lows, default=low), low / 2)), max(high, *highs)
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


_MARK_DASHES = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def goodput_figure(
    training: CheckpointedTraining, curve: Sequence[IntervalGoodput], named: Mapping[str, IntervalGoodput]
) -> Figure:
    """Return a figure of goodput against the checkpoint interval: the closed form, and a band of 80 % of drawn runs.

    Args:
        training: The training.
        curve: The intervals, from short to long.
        named: Intervals that have a line of their own; the first is the best, and determines the unit.
    """
    from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

    from pipesched.simulator.views.shown_figure import ShownFigure  # matplotlib takes a second to load

    unit_s, unit = duration_unit(next(iter(named.values())).interval_steps * training.step_s)

    def interval(point: IntervalGoodput) -> float:
        return point.interval_steps * training.step_s / unit_s

    figure = ShownFigure(figsize=(7.0, 4.6), facecolor=WHITE, layout="constrained")
    axes, places = figure.subplots(), [*map(interval, curve)]
    lows, highs = [point.low for point in curve], [point.high for point in curve]
    axes.fill_between(places, lows, highs, color=BLUE, alpha=0.2, linewidth=0, label="80 % of runs")
    axes.plot(places, [point.goodput for point in curve], color=BLUE, label="goodput")
    for index, (name, point) in enumerate(named.items()):
        label = f"{name}: {readable_duration(point.interval_steps * training.step_s)}, {point.goodput:.2%}"
        style, colour = _MARK_DASHES[index % len(_MARK_DASHES)], CURVE_COLOURS[1 + index % (len(CURVE_COLOURS) - 1)]
        axes.axvline(
            interval(point), color=DARK_RED if index == 0 else colour, linewidth=1, linestyle=style, label=label
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"checkpoint interval [{unit}]")
    axes.set_ylabel("goodput")
    axes.tick_params(colors=FAINT)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{training.num_steps} steps, a failure every {readable_duration(training.fail_every_s)}, "
        f"{readable_duration(training.restart_s)} to restart, {readable_duration(training.checkpoint_s)} a checkpoint",
        x=0.01, ha="left", fontsize=10,
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


_COLOURS = (BLUE, ORANGE, VIOLET, YELLOW, PINK, GREY)
_MOST_LABELS = 40


def cost_figure(
    title: str,
    what: str,
    labels: Sequence[str],
    seconds: Mapping[str, Sequence[float]],
    held: Mapping[str, Sequence[int]] | None = None,
) -> Figure:
    """Return bars of seconds [ms], one on another, and below them bars of bytes [MiB].

    Args:
        title: Above the picture.
        what: Name of a bar's unit, as ``layer``.
        labels: The name of each bar.
        seconds: For each part of the bars, by name, its seconds in each bar [s].
        held: Bytes of each bar, under their name, or None to draw no bytes.
    """
    from pipesched.simulator.views.shown_figure import ShownFigure  # matplotlib takes a second to load

    places = range(len(labels))
    figure = ShownFigure(
        figsize=(max(8.0, min(16.0, 0.3 * len(labels) + 2.0)), 4.8), facecolor=WHITE, layout="constrained"
    )
    figure.suptitle(literal(title), x=0.01, ha="left", fontsize=10)
    rows = figure.subplots(1 + len(held or {}), 1, sharex=True, squeeze=False)[:, 0]
    bottom_ms = [0.0] * len(labels)
    for index, (name, part_s) in enumerate(seconds.items()):
        part_ms = [1e3 * value for value in part_s]
        rows[0].bar(places, part_ms, bottom=bottom_ms, color=_COLOURS[index % len(_COLOURS)], label=literal(name))
        bottom_ms = [below + value for below, value in zip(bottom_ms, part_ms, strict=True)]
    rows[0].set_ylabel("time [ms]", fontsize=9)
    figure.legend(loc="outside lower center", ncols=max(1, len(seconds)), frameon=False, fontsize=9)
    for row, (name, num_bytes) in zip(rows[1:], (held or {}).items(), strict=True):
        row.bar(places, [value / 2**20 for value in num_bytes], color=TEAL)
        row.set_ylabel(f"{name} [MiB]", fontsize=9)
    if len(labels) <= _MOST_LABELS:
        rows[-1].set_xticks(places, list(map(literal, labels)))
    rows[-1].set_xlabel(what, fontsize=9)
    return figure


def profile_figure(profile: Profile) -> Figure:
    """Return bars for each layer at the largest micro-batch size: forward and backward [ms], saved bytes [MiB]."""
    measured = [layer.measurements[-1] for layer in profile.layers]
    return cost_figure(
        f"{profile.model}, micro-batches of {profile.microbatch_sizes[-1]}",
        "layer",
        list(map(str, range(len(measured)))),
        {"forward": [cost.forward_s for cost in measured], "backward": [cost.backward_s for cost in measured]},
        {"saved": [cost.saved_bytes for cost in measured]},
    )


def lag_figure(lags: Mapping[str, Lag | None], title: str = "") -> Figure:
    """Draw a dot and an interval for each contender: grey if the interval contains 0, dotted if it is unbounded.

    Args:
        lags: Lag of each contender by name, the first one on top; None for the leader.
        title: Above the picture.
    """
    from pipesched.simulator.views.shown_figure import ShownFigure  # matplotlib takes a second to load

    figure = ShownFigure(figsize=(8.0, 1.4 + 0.35 * len(lags)), facecolor=WHITE, layout="constrained")
    figure.suptitle(literal(title), x=0.01, ha="left", fontsize=10)
    axes = figure.subplots()
    axes.axvline(0.0, color=INK, linewidth=0.8)
    for row, lag in enumerate(lags.values()):
        shown = Lag(0.0, 0.0, 0.0) if lag is None else lag
        colour = BLUE if lag is None or lag.is_clear else GREY
        axes.plot(100 * shown.mean, row, "o", color=colour)
        if shown.to_dict()["high"] is not None:
            axes.plot([100 * shown.low, 100 * shown.high], [row, row], color=colour)
        else:
            axes.axhline(row, color=colour, linestyle=":", linewidth=1.2)
    axes.set_yticks(range(len(lags)), [literal(name) for name in lags])
    axes.set_ylim(len(lags) - 0.5, -0.5)
    axes.margins(x=0.06)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("longer than the leader [%]", fontsize=9)
    return figure
