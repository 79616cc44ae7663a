"""A Gantt chart as a file: a picture, or a page for a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipesched.schedules import Timeline
from pipesched.simulator.views.figure import GANTT_SUFFIXES, require_suffix, save_figure, write_bytes
from pipesched.simulator.views.gantt_chart import WHOLE, ChartOptions
from pipesched.simulator.views.run_details import RunDetails


def draw_gantt(
    timelines: Sequence[Timeline],
    path: Path | str,
    title: str = "",
    caption: str = "",
    details: Sequence[RunDetails] = (),
    options: ChartOptions = WHOLE,
    notes: Sequence[str] = (),
) -> None:
    """Draw the Timelines on one time axis and write a picture (.png, .svg or .pdf) or a page (.html).

    See `gantt_figure` and `timeline_page`.

    Args:
        timelines: At least one.
        path: The file.
        title: Above the chart; empty: as in `gantt_figure`.
        caption: Beside it.
        details: Details of each Timeline; may be empty.
        options: Visible parts; a page has all parts, and begins with these.
        notes: Further lines at the end of a page; a picture has no room for them.

    Raises:
        SimulationError: The suffix is another one, there is no Timeline, nothing in one takes time, or the file cannot
            be written.
    """
    if require_suffix(path, GANTT_SUFFIXES) == ".html":
        from pipesched.simulator.views.timeline_page import timeline_page

        lines = "\n".join(dict.fromkeys(filter(None, (*caption.splitlines(), *notes))))
        write_bytes(path, timeline_page(timelines, title, lines, details, options).encode())
        return
    from pipesched.simulator.views.gantt_figure import gantt_figure

    save_figure(lambda: gantt_figure(timelines, title, caption, options, details), path)
