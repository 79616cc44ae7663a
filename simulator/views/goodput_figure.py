"""The picture of a training under failures: its goodput over the checkpoint interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.simulator.analysis import duration_unit, readable_duration
from pipesched.simulator.failures import CheckpointedTraining, IntervalGoodput
from pipesched.simulator.views.figure import BLUE, CURVE_COLOURS, DARK_RED, FAINT, WHITE, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def draw_goodput(
    training: CheckpointedTraining,
    curve: Sequence[IntervalGoodput],
    named: Mapping[str, IntervalGoodput],
    path: str | Path,
) -> None:
    """Draw the goodput to a file (.png, .svg or .pdf); see `goodput_figure`.

    Raises:
        SimulationError: The suffix is another one, or the file cannot be written.
    """
    save_figure(lambda: goodput_figure(training, curve, named), path)


def goodput_figure(
    training: CheckpointedTraining, curve: Sequence[IntervalGoodput], named: Mapping[str, IntervalGoodput]
) -> Figure:
    """Return the goodput over the checkpoint interval, by the closed form, and 80 % of the drawn runs.

    Args:
        training: The training.
        curve: The intervals, from short to long.
        named: Intervals that have a line of their own; the first is the best, and determines the unit.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

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
        style, colour = _DASHES[index % len(_DASHES)], CURVE_COLOURS[1 + index % (len(CURVE_COLOURS) - 1)]
        axes.axvline(
            interval(point), color=DARK_RED if index == 0 else colour, linewidth=1, linestyle=style, label=label
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
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
