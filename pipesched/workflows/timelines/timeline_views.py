"""Views of Timelines: the Gantt chart, and the trace for Perfetto."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from pipesched.schedules import Timeline
from pipesched.schedules.formats import read_timeline, write_text
from pipesched.simulator import views
from pipesched.simulator.analysis import readable_s
from pipesched.simulator.views import ChartOptions, FigureStyle
from pipesched.workflows import (
    ArgumentError,
    Result,
    Table,
    require_at_least,
    require_flag,
    require_kind,
    require_number,
    require_path,
)
from pipesched.workflows.simulating import Prediction

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.simulator.views import RunDetails


@runtime_checkable
class HasTimeline(Protocol):
    """A result with a Timeline: a simulation, a run, or an imported run."""

    @property
    def timeline(self) -> Timeline:
        """The predicted or measured Timeline."""


TimelineArgument: TypeAlias = Timeline | HasTimeline | str | Path


@dataclass(frozen=True, slots=True, repr=False)
class Gantt:
    """Timelines on one time axis: runs of one schedule paired rank by rank, others one under another.

    Attributes:
        timelines: At least one.
        title: Above the picture; empty: the schedules, the numbers of ranks and micro-batches, and the costs.
        details: Further facts on each Timeline, as limits of memory; empty: none.
        options: Options of the chart.
        notes: Lines below the title of a page.
    """

    timelines: tuple[Timeline, ...]
    title: str = ""
    details: tuple[RunDetails, ...] = ()
    options: ChartOptions = ChartOptions()  # noqa: RUF009 -- frozen
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an empty chart.

        Raises:
            ArgumentError: No time is left between `from_s` and `to_s`, or no Timeline has the memory to draw.
        """
        end_s = max(timeline.makespan_s for timeline in self.timelines)
        from_s, to_s = self.options.from_s, self.options.to_s
        if from_s and from_s >= end_s:
            raise ArgumentError(f"from_s: got {from_s:g}, expected less than the end, {end_s:g} s; try 0")
        if to_s is not None and to_s <= from_s:
            raise ArgumentError(f"to_s: got {to_s:g}, expected more than the start, {from_s:g} s; try {end_s:g}")
        if self.options.has_memory and not any(timeline.memory for timeline in self.timelines):
            raise ArgumentError(
                "memory: got Timelines without memory, expected one with memory; try costs with bytes, as saved_bytes, "
                "or a run of a model"
            )

    def plot(self) -> Figure:
        """Return the picture."""
        return views.gantt_figure(self.timelines, self.title, options=self.options, details=self.details)

    def save(self, path: str | Path) -> None:
        """Write a picture (.png, .svg or .pdf), or a page to zoom in (.html), completely or not at all.

        Raises:
            ArgumentError: `path` is no name of a file.
            SimulationError: The suffix is another one, or the file cannot be written.
        """
        views.draw_gantt(self.timelines, require_path(path), self.title, "", self.details, self.options, self.notes)

    def to_text(self, columns: int = 100, *, has_colour: bool = False) -> str:
        """Return the charts as text, one under another on one time axis, for a terminal, in colour if asked.

        Raises:
            ArgumentError: `columns` is no number of characters.
        """
        columns = require_at_least("columns", columns, 1)
        end_s = max(timeline.makespan_s for timeline in self.timelines)
        options = replace(self.options, to_s=end_s if self.options.to_s is None else self.options.to_s)
        return "\n".join(
            views.text_gantt(timeline, columns, options, has_colour=has_colour) for timeline in self.timelines
        )

    def to_frame(self) -> pd.DataFrame:
        """Return a row per span of all Timelines, with the number of its Timeline."""
        return _frame(self.timelines)

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        data = BytesIO()
        self.plot().savefig(data, format="png", dpi=110)
        names = escape(self.title or ", ".join(timeline.name for timeline in self.timelines), quote=True)
        return f'<img alt="{names}" src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}">'


@dataclass(frozen=True, slots=True, repr=False)
class Trace(Result):
    """Timelines as a trace that ui.perfetto.dev opens: lanes per rank, arrows for messages, memory as counters."""

    timelines: tuple[Timeline, ...]

    def to_json(self) -> str:
        """Return the trace as text."""
        return views.to_trace(*self.timelines)

    def save(self, path: str | Path) -> None:
        """Write the trace, completely or not at all.

        Raises:
            ArgumentError: `path` is no name of a file.
            ScheduleError: The file cannot be written.
        """
        write_text(require_path(path), self.to_json())

    def to_frame(self) -> pd.DataFrame:
        """Return a row per span of all Timelines, with the number of its Timeline."""
        return _frame(self.timelines)

    def table(self) -> Table:
        """Return a row per Timeline, formatted for people."""
        rows = tuple(
            {
                "": timeline.name,
                "source": timeline.source,
                "ranks": str(len(timeline.rank_to_device)),
                "spans": str(len(timeline.spans)),
                "makespan": readable_s(timeline.makespan_s),
            }
            for timeline in self.timelines
        )
        return Table("Trace", rows, "save it, and open the file in ui.perfetto.dev")

    def __repr__(self) -> str:
        return f"Trace({', '.join(f'{timeline.name} {timeline.source}' for timeline in self.timelines)})"


def gantt(
    *timelines: TimelineArgument,
    title: str = "",
    from_s: float = 0.0,
    to_s: float | None = None,
    idle: bool = False,
    memory: bool = False,
    style: FigureStyle = FigureStyle(),  # noqa: B008 -- frozen
) -> Gantt:
    """Return a Gantt chart of Timelines, of simulations, of runs, or of files of Timelines.

    Args:
        timelines: At least one.
        title: Above the picture; empty: the schedules, the numbers of ranks and micro-batches, and the costs.
        from_s: Start of the axis, in seconds after the first work.
        to_s: End of the axis; None: the end of the runs.
        idle: Whether idle time is coloured by its causes.
        memory: Whether the memory of the devices is drawn below, with its limits.
        style: Size and font of the picture.

    Raises:
        ArgumentError: There is no Timeline, no time between `from_s` and `to_s`, or no known memory.
        ScheduleError: A file is no Timeline.
    """
    require_kind("title", title, str, "a text")
    require_flag("idle", idle)
    require_flag("memory", memory)
    require_number("from_s", from_s)
    if to_s is not None:
        require_number("to_s", to_s)
    require_kind("style", style, FigureStyle, "a FigureStyle")
    details = (given.details if isinstance(given, Prediction) else views.RunDetails() for given in timelines)
    return Gantt(_timelines(timelines), title, tuple(details), ChartOptions(from_s, to_s, idle, memory, style))


def trace(*timelines: TimelineArgument) -> Trace:
    """Return a trace of Timelines, of simulations, of runs, or of files of Timelines.

    Args:
        timelines: At least one.

    Raises:
        ArgumentError: There is no Timeline.
        ScheduleError: A file is no Timeline.
    """
    return Trace(_timelines(timelines))


def _frame(timelines: Sequence[Timeline]) -> pd.DataFrame:
    import pandas as pd

    frames = [views.to_frame(timeline) for timeline in timelines]
    return pd.concat(frames, keys=range(len(frames)), names=["timeline", "span"]).reset_index(level="timeline")


def _timelines(given: Sequence[TimelineArgument]) -> tuple[Timeline, ...]:
    if not given:
        raise ArgumentError("timelines: got none, expected at least one; try pipesched.simulate(..)")
    return tuple(map(read_timeline_argument, given))


def read_timeline_argument(timeline: TimelineArgument, name: str = "timelines") -> Timeline:
    """Return the Timeline of a Timeline, a simulation, a run, or a file.

    Args:
        timeline: Any of these.
        name: Name of the argument, for messages.

    Raises:
        ArgumentError: `timeline` is something else.
        ScheduleError: The file is no Timeline.
    """
    require_kind(name, timeline, TimelineArgument, "a Timeline, a simulation, a run or a file of a Timeline")
    if isinstance(timeline, Timeline):
        return timeline
    return timeline.timeline if isinstance(timeline, HasTimeline) else read_timeline(Path(timeline))
