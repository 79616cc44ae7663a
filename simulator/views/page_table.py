"""The key figures and the table of a page of Timelines: the settings of each run, and its measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from pipesched.schedules import Timeline
from pipesched.schedules.common import printable
from pipesched.schedules.ops import computes
from pipesched.simulator.analysis import (
    CAUSES,
    DeviceMetrics,
    Metrics,
    Piece,
    readable_bytes,
    readable_s,
    readable_share,
    shares,
)
from pipesched.simulator.views.gantt_chart import Chart
from pipesched.simulator.views.html_page import KeyFigures
from pipesched.simulator.views.run_details import RunDetails

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
    """Return makespan, bubble, throughput and, where it is known, peak memory of the runs, the fastest of many."""
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
