"""A page of Timelines: one HTML file with its data and its script, which draws, zooms and explains them offline."""

from __future__ import annotations

from collections.abc import Sequence

from pipesched.schedules import Timeline
from pipesched.schedules.common import printable
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import critical_path
from pipesched.simulator.views.gantt_chart import WHOLE, Chart, ChartOptions, gantt_layout
from pipesched.simulator.views.html_page import PagePart, html_page
from pipesched.simulator.views.page_data import page_data
from pipesched.simulator.views.page_table import key_figures, page_table
from pipesched.simulator.views.run_details import RunDetails, title_of


def timeline_page(
    timelines: Sequence[Timeline],
    title: str = "",
    notes: str = "",
    details: Sequence[RunDetails] = (),
    options: ChartOptions = WHOLE,
) -> str:
    """Return the Timelines as a page for a browser, which asks for nothing else: no other file, no network.

    Runs of one schedule on the same devices are paired, others stand one under another, as in `gantt_figure`.

    Args:
        timelines: At least one.
        title: Above all; empty: as in `gantt_figure`.
        notes: Lines at the end of the page, folded.
        details: Details of each run beside its Timeline; may be empty.
        options: Parts that are visible at first; memory always is.

    Raises:
        SimulationError: There is no Timeline, or nothing in one takes time.
    """
    if not timelines:
        raise SimulationError("timelines: got none, expected at least one; try one that was simulated or measured")
    chart = gantt_layout(timelines)
    heading = printable(title or title_of(chart, details))
    lines = "\n".join(map(printable, notes.splitlines()))
    return html_page(heading, key_figures(chart, details), [timeline_part(chart, details, options)], lines)


def timeline_part(chart: Chart, details: Sequence[RunDetails] = (), options: ChartOptions = WHOLE) -> PagePart:
    """Return the part of a page that shows Timelines, with a table of settings and measures."""
    known = tuple(details) or (RunDetails(),) * len(chart.timelines)
    paths = [critical_path(timeline) for timeline in chart.timelines]
    data = page_data(chart, paths, [run.memory_bytes for run in known], options)
    table = page_table(chart, paths, known)
    scripts = ("timeline_drawing.js", "timeline_page.js")
    return PagePart("timeline_section.html", scripts, {**data, "table": table}, "timeline_table.html")
