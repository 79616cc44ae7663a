"""The picture of costs: bars of seconds, one on another, and bars of bytes below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipesched.profiles.costs import Profile
from pipesched.simulator.analysis import literal
from pipesched.simulator.views.figure import BLUE, GREY, ORANGE, PINK, TEAL, VIOLET, WHITE, YELLOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        seconds: The parts of the bars by name, of each bar its seconds [s].
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
