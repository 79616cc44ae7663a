"""The staleness of a run as a picture: a row per stage, a column per micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipesched.schedules import Schedule
from pipesched.schedules.weights import Use, Uses, first_uses, looks_ahead
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import literal
from pipesched.simulator.views.figure import (
    BLACK,
    COPIES_MAP,
    STALENESS_MAP,
    WHITE,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CELLS = 640
"""More are shown as colours, without their numbers."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One number for every stage and micro-batch.

    Attributes:
        title: Its quantity.
        cells: ``cells[stage][microbatch]``, or None if unknown.
        counts_versions: Whether it counts held versions, at least 1; otherwise steps, where 0 is good.
    """

    title: str
    cells: tuple[tuple[int | None, ...], ...]
    counts_versions: bool = False


def panels(schedule: Schedule, num_microbatches: int) -> tuple[Panel, ...]:
    """Return the panels of the first `num_microbatches`.

    For F and for the backward, a panel counts how many steps the version that is read lies behind the version that the
    gradient changes. If a schedule predicts weights, a second panel counts the steps that the prediction leaves. The
    last panel counts the versions that are held when the backward runs.
    """
    forwards, backwards = first_uses(schedule, num_microbatches)

    def panel(title: str, uses_of: Uses, value: Callable[[Use], int | None], counts_versions: bool = False) -> Panel:
        stages, columns = range(schedule.num_stages), range(min(num_microbatches, schedule.num_microbatches))
        uses = ((uses_of.get((stage, i)) for i in columns) for stage in stages)
        return Panel(
            title, tuple(tuple(None if use is None else value(use) for use in row) for row in uses), counts_versions
        )

    shown_panels = []
    for name, its_uses in (("F", forwards), ("B", backwards)):
        shown_panels.append(panel(f"{name}: steps behind", its_uses, lambda use: use.staleness))
        if any(looks_ahead(use.op) for use in its_uses.values()):
            shown_panels.append(panel(f"{name}: steps behind, after look-ahead", its_uses, lambda use: use.lag))
    return (*shown_panels, panel("versions held at B", backwards, lambda use: len(use.held), counts_versions=True))


def staleness_figure(schedule: Schedule, num_microbatches: int = 32, title: str = "") -> Figure:
    """Return the panels of the first `num_microbatches` as a picture.

    Raises:
        SimulationError: There is no micro-batch to show.
    """
    if num_microbatches < 1:
        raise SimulationError(f"staleness: got {num_microbatches} micro-batches, expected at least 1; try 32")
    shown = panels(schedule, num_microbatches)
    count = min(num_microbatches, schedule.num_microbatches)
    part = f"micro-batches 0 to {count - 1} of {schedule.num_microbatches}"
    from pipesched.simulator.views.shown_figure import ShownFigure  # matplotlib takes a second to load

    height_in = len(shown) * (0.75 + max(0.5, min(6.0, 0.26 * schedule.num_stages))) + 0.6
    figure = ShownFigure(
        figsize=(max(5.0, min(16.0, 0.32 * count + 2.2)), height_in), facecolor=WHITE, layout="constrained"
    )
    figure.suptitle(literal(title or f"{schedule.name}: {part}"), x=0.01, ha="left", fontsize=11)
    for axes, panel in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        _draw(axes, panel, _most(shown, panel.counts_versions))
    axes.tick_params(labelbottom=True)
    axes.set_xlabel("micro-batch", fontsize=9)
    return figure


def _most(shown: Sequence[Panel], counts_versions: bool) -> int:
    """Return the largest number, without its sign, in all panels of one kind."""
    alike = (panel for panel in shown if panel.counts_versions == counts_versions)
    cells = (abs(cell) for panel in alike for row in panel.cells for cell in row if cell is not None)
    return max([1 + counts_versions, *cells])


def _draw(axes: Axes, panel: Panel, most: int) -> None:
    """Draw one panel; `most` is the number of the strongest colour."""
    middle = 1 if panel.counts_versions else 0
    values = [[middle if cell is None else cell for cell in row] for row in panel.cells]
    colours, reach = (COPIES_MAP if panel.counts_versions else STALENESS_MAP), 1.25 * (most - middle)
    axes.imshow(values, cmap=colours, vmin=middle - reach, vmax=middle + reach, aspect="auto")
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.set_ylabel("stage", fontsize=9)
    axes.set_yticks(range(len(values)))
    axes.tick_params(labelsize=8, length=0, labelbottom=False)
    axes.spines[:].set_visible(False)
    for edge in range(1, len(values)):
        axes.axhline(edge - 0.5, color=WHITE, linewidth=1.5)
    if len(values) * len(values[0]) > _MOST_CELLS:
        return
    for stage, row in enumerate(panel.cells):
        for microbatch, cell in enumerate(row):
            if cell is not None:
                ink = WHITE if abs(cell - middle) > 0.6 * reach else BLACK
                axes.text(microbatch, stage, str(cell), ha="center", va="center", fontsize=7, color=ink)
