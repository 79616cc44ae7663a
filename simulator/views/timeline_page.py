"""A page of Timelines: one HTML file with its data and its script, which draws, zooms and explains them offline."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from pipesched.schedules import Timeline
from pipesched.schedules.common import printable
from pipesched.schedules.ops import computes
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import (
    CAUSES,
    DeviceMetrics,
    Metrics,
    Piece,
    critical_path,
    readable_bytes,
    readable_s,
    readable_share,
    shares,
)
from pipesched.simulator.views.figure import GANTT_SUFFIXES, require_suffix, save_figure, write_bytes
from pipesched.simulator.views.gantt_chart import WHOLE, Chart, ChartOptions, RunDetails, gantt_layout, title_of
from pipesched.simulator.views.html_page import KeyFigures, PagePart, html_page
from pipesched.simulator.views.page_data import page_data


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
        title: Title at the top of the page; empty: as in `gantt_figure`.
        notes: Lines at the end of the page, folded.
        details: Details of each run beside its Timeline; may be empty.
        options: Parts that are visible at first; memory always is.

    Raises:
        SimulationError: There is no Timeline, or nothing in one takes time.
    """
    if not timelines:
        raise SimulationError("timelines: got none, expected at least one; try a simulated or measured Timeline")
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


_MOST_RUNS = 6
"""Runs in the key figures; the table has all."""
_Number = TypeVar("_Number", int, float)


def page_table(chart: Chart, paths: Sequence[Sequence[Piece]], details: Sequence[RunDetails]) -> list[list[str]]:
    """Return the rows of the table: a name, and a cell for each Timeline, empty if the Timeline lacks the value."""
    columns = [_column(*run) for run in zip(chart.timelines, chart.measures, paths, details, strict=True)]
    names: list[str] = []
    for column in columns:
        place = 0
        for name in column:  # names of one column alone keep their place
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    return [[printable(name), *(printable(column.get(name, "")) for column in columns)] for name in names]


def key_figures(chart: Chart, details: Sequence[RunDetails]) -> KeyFigures:
    """Return makespan, bubble, throughput and any known peak memory of the runs; of many, only of the fastest."""
    runs = range(len(chart.measures))
    shown = sorted(sorted(runs, key=lambda run: chart.measures[run].makespan_s)[:_MOST_RUNS])
    names = [printable(chart.names[run]) for run in shown]
    scope = "" if len(shown) == len(runs) else f", {len(shown)} fastest of {len(runs)}"
    rows = {
        f"makespan{scope}": [readable_s(measures.makespan_s) for measures in chart.measures],
        "bubble_fraction": [readable_share(measures.bubble_fraction) for measures in chart.measures],
        "micro-batches/s": [f"{measures.throughput:.4g}" for measures in chart.measures],
    }
    known = tuple(details) or (RunDetails(),) * len(chart.measures)
    peaks = [_peak(measures, run) for measures, run in zip(chart.measures, known, strict=True)]
    if any(peaks):
        rows["peak memory"] = [peak or "-" for peak in peaks]
    return KeyFigures([[name, *(values[run] for run in shown)] for name, values in rows.items()], names)


def _peak(measures: Metrics, details: RunDetails) -> str:
    """Return the memory of the fullest device, with its limit; empty where it is not known."""
    held = [device for device in measures.devices if device.peak_memory_bytes is not None]
    if not held:
        return ""
    limits = details.memory_bytes

    def share(device: DeviceMetrics) -> tuple[float, int]:
        peak_bytes = device.peak_memory_bytes or 0
        return peak_bytes / limits.get(device.device, math.inf), peak_bytes

    fullest = max(held, key=share)
    limit = limits.get(fullest.device)
    peak = readable_bytes(fullest.peak_memory_bytes or 0)
    return peak if limit is None else f"{peak} of {readable_bytes(limit)}"


def _column(timeline: Timeline, measures: Metrics, path: Sequence[Piece], details: RunDetails) -> dict[str, str]:
    parts = [part for span in timeline.spans for part in computes(span.op)]
    total_s = len(measures.devices) * measures.makespan_s
    idle_s = {cause: math.fsum(dict(device.idle_by_cause_s)[cause] for device in measures.devices) for cause in CAUSES}
    limits = {readable_bytes(details.memory_bytes[device]): None for device in sorted(details.memory_bytes)}
    peaks = [device.peak_memory_bytes for device in measures.devices if device.peak_memory_bytes is not None]
    judged = [
        device.peak_memory_bytes <= details.memory_bytes[device.device]
        for device in measures.devices
        if device.peak_memory_bytes is not None and device.device in details.memory_bytes
    ]
    return {
        "schedule": timeline.name,
        "times": timeline.source,
        "ranks": str(len(timeline.rank_to_device)),
        "devices": str(len(timeline.devices)),
        "stages": str(len({part.stage for part in parts})),
        "micro-batches": str(len({part.microbatch for part in parts})),
        **details.settings,
        **({"memory limit": ", ".join(limits)} if limits else {}),
        "makespan": readable_s(measures.makespan_s),
        "bubble_fraction": readable_share(measures.bubble_fraction),
        **{f"idle, {cause}": readable_share(seconds / total_s) for cause, seconds in idle_s.items() if seconds > 0},
        "bubble_overhead": readable_share(measures.bubble_overhead),
        "micro-batches/s": f"{measures.throughput:.4g}",
        **_extremes("peak memory", peaks, readable_bytes),
        **_extremes("in flight", details.in_flight.values(), "{:.4g}".format),
        **({"fits": "yes" if all(judged) else "no"} if judged else {}),
        **{f"critical path, {kind}": readable_s(seconds) for kind, seconds in shares(path).items()},
    }


def _extremes(name: str, values: Collection[_Number], text: Callable[[_Number], str]) -> dict[str, str]:
    """Return the row of the largest and the smallest value of all devices; empty if nothing is known."""
    return {f"{name}, most / least": " / ".join(map(text, dict.fromkeys((max(values), min(values)))))} if values else {}


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
        title: Title of the chart; empty: as in `gantt_figure`.
        caption: Text for the caption of a picture, or for the end of a page.
        details: Details of each Timeline; may be empty.
        options: Visible parts; a page has all parts, and begins with these.
        notes: Further lines at the end of a page; a picture has no room for them.

    Raises:
        SimulationError: The suffix is another one, there is no Timeline, nothing in one takes time, or the file cannot
            be written.
    """
    if require_suffix(path, GANTT_SUFFIXES) == ".html":
        lines = "\n".join(dict.fromkeys(filter(None, (*caption.splitlines(), *notes))))
        write_bytes(path, timeline_page(timelines, title, lines, details, options).encode())
        return
    from pipesched.simulator.views.gantt_figure import gantt_figure

    save_figure(lambda: gantt_figure(timelines, title, caption, options, details), path)
