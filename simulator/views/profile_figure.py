"""The picture of a profile: what every layer of a model takes, and what it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesched.profiles.costs import Profile
from pipesched.simulator.analysis import literal
from pipesched.simulator.views.figure import BLUE, ORANGE, TEAL, WHITE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def profile_figure(profile: Profile) -> Figure:
    """Return bars for each layer at the largest micro-batch size: forward and backward [ms], saved bytes [MiB]."""
    from pipesched.simulator.views.shown_figure import ShownFigure  # matplotlib takes a second to load

    measured = [layer.measurements[-1] for layer in profile.layers]
    places = range(len(measured))
    forward_ms = [1e3 * layer_cost.forward_s for layer_cost in measured]
    backward_ms = [1e3 * layer_cost.backward_s for layer_cost in measured]
    figure = ShownFigure(
        figsize=(max(8.0, min(16.0, 0.3 * len(measured) + 2.0)), 4.8), facecolor=WHITE, layout="constrained"
    )
    figure.suptitle(
        literal(f"{profile.model}, micro-batches of {profile.microbatch_sizes[-1]}"), x=0.01, ha="left", fontsize=10
    )
    seconds, kept = figure.subplots(2, 1, sharex=True)
    seconds.bar(places, forward_ms, color=BLUE, label="forward")
    seconds.bar(places, backward_ms, bottom=forward_ms, color=ORANGE, label="backward")
    seconds.set_ylabel("time [ms]", fontsize=9)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    kept.bar(places, [layer_cost.saved_bytes / 2**20 for layer_cost in measured], color=TEAL)
    kept.set_ylabel("saved [MiB]", fontsize=9)
    kept.set_xlabel("layer", fontsize=9)
    return figure
