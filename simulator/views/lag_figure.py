"""The picture of a race: a row per contender, how much longer it takes than the leader, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipesched.simulator.analysis import literal
from pipesched.simulator.search import Lag
from pipesched.simulator.views.figure import BLUE, GREY, INK, WHITE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
