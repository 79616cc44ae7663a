"""Pages of a search: a table of all results, the layout of the best one, and how it runs."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from pipesched.schedules import Timeline
from pipesched.schedules.common import printable
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import readable_bytes, readable_reason, readable_s
from pipesched.simulator.planner import Request, steps_of, timeline_of
from pipesched.simulator.search import COLUMN_HEADINGS, Outcome, ordered_by
from pipesched.simulator.tuner import Problem, timeline_of_setting
from pipesched.simulator.views.gantt_chart import ChartOptions, RunDetails, gantt_layout, run_details
from pipesched.simulator.views.heat_maps import ScaledQuantity, SettingGrid, heat_faces, setting_grid, short_number
from pipesched.simulator.views.html_page import KeyFigures, PagePart, html_page
from pipesched.simulator.views.op_looks import hex_of, is_dark
from pipesched.simulator.views.plan_figure import layout_figure
from pipesched.simulator.views.shown_figure import ShownFigure
from pipesched.simulator.views.sweep_figure import sweep_figure
from pipesched.simulator.views.timeline_page import timeline_part

_Rows = Sequence[Mapping[str, str]]
_MOST_SPANS = 400_000
"""Of a longer Timeline no page is made."""


def plan_page(best: Outcome, request: Request, title: str, rows: _Rows, notes: str = "") -> str:
    """Return the page of a planner's search: its plans, and the layout and Timeline of the best one.

    Args:
        best: The plan of the first row.
        request: The request.
        title: Title at the top of the page.
        rows: A row of cells per plan, as people read them.
        notes: Lines at the end of the page, folded.
    """
    candidate = best.setting
    costs = request.cuts().costs_of(candidate)
    timeline = timeline_of(candidate, request)
    settings = {
        "plan": candidate,
        "micro-batch size": candidate.microbatch_size,
        "layers of the stages": ", ".join(map(str, candidate.partition)),
        "costs": costs.origin or None,
        "machines": request.cluster.origin or None,
        "messages": candidate.compression,
    }
    num_steps = steps_of(candidate)
    heading = f"the first: {candidate}" + ("" if num_steps == 1 else f", the first {num_steps} steps of a run")
    search = _table(rows, 0, "plans") | {
        "heading": heading,
        "picture": _picture(layout_figure(candidate, request.cluster)),
        "picture_says": f"where the ranks of {candidate} are",
    }
    figures = KeyFigures(
        [
            ("fastest plan", str(candidate)),
            ("time per step", readable_s(best.seconds or 0.0)),
            ("samples/s", f"{best.throughput:.4g}"),
            *_memory_figure(best),
        ]
    )
    return _page(title, figures, search, notes, timeline, run_details(timeline, request.cluster, settings))


def tune_page(
    outcomes: Sequence[Outcome],
    best: Outcome | None,
    problem: Problem,
    title: str,
    rows: _Rows,
    notes: str = "",
    best_row: int | None = 0,
) -> str:
    """Return the page of a tuner's search: its settings, maps of time and memory, and how the best one runs.

    Args:
        outcomes: All settings.
        best: The answer, or None if nothing fits.
        problem: The common settings.
        title: Title at the top of the page.
        rows: A row of cells per setting, as people read them.
        notes: Lines at the end of the page, folded.
        best_row: The row of the answer, which is marked, or None without such a row.
    """
    try:
        grid = setting_grid(outcomes)
    except SimulationError:  # nothing could be predicted, which the table says
        maps = []
    else:
        maps = [_map(grid, quantity, best) for quantity in grid.quantities]
    search = _table(rows, best_row, "settings") | {"maps": maps}
    if best is None:
        return _page(title, KeyFigures([("chosen", "none: nothing fits")]), search | {"heading": ""}, notes)
    setting = best.setting
    timeline = timeline_of_setting(problem, setting)
    settings = {"setting": setting, "micro-batch size": problem.microbatch_size(setting)}
    many = "" if setting.num_pipelines == 1 else f": {setting.num_pipelines} pipelines, begun together"
    details = run_details(timeline, problem.cluster, settings)
    figures = KeyFigures(
        [("chosen", str(setting)), ("time per batch", readable_s(best.seconds or 0.0)), *_memory_figure(best)]
    )
    return _page(title, figures, search | {"heading": f"chosen: {setting}{many}"}, notes, timeline, details)


def sweep_page(outcomes: Sequence[Outcome], by: str, title: str, rows: _Rows, notes: str = "") -> str:
    """Return the page of a sweep: its settings, and their picture.

    Args:
        outcomes: All settings.
        by: The measure that orders them.
        title: Title at the top of the page.
        rows: A row of readable cells for each setting to show, the best first.
        notes: Lines at the end of the page, folded.

    Raises:
        SimulationError: No setting could be predicted.
    """
    picture = {"picture": _picture(sweep_figure(outcomes, by)), "picture_says": "heat maps, and time over memory"}
    best = ordered_by(outcomes, by)[0]
    figures = [("best setting" if best.fits else "best setting, over memory", best.setting.label)]
    for name in dict.fromkeys((by, "bubble_fraction", "peak_memory_bytes")):
        heading = COLUMN_HEADINGS.get(name, name)
        if rows[0].get(heading, "-") != "-":
            figures.append((heading, rows[0][heading]))
    search = _table(rows, 0 if best.fits else None, "settings") | picture | {"heading": ""}
    return _page(title, KeyFigures(figures), search, notes)


def _memory_figure(best: Outcome) -> list[tuple[str, str]]:
    return [("peak memory", readable_bytes(best.held_bytes))] if best.held_bytes else []


def _page(
    title: str,
    figures: KeyFigures,
    search: dict[str, Any],
    notes: str,
    timeline: Timeline | None = None,
    details: RunDetails | None = None,
) -> str:
    has_picture = "picture" in search
    parts = [PagePart("search_section.html", ("search_page.js",), {"search": search}, "search_table.html", has_picture)]
    if timeline is not None and len(timeline.spans) <= _MOST_SPANS:
        known = [] if details is None else [details]
        parts.append(timeline_part(gantt_layout([timeline]), known, ChartOptions(has_idle=True)))
    rows = [tuple(map(printable, row)) for row in figures.rows]
    return html_page(printable(title), KeyFigures(rows), parts, "\n".join(map(printable, notes.splitlines())))


def _table(rows: _Rows, best_row: int | None, what: str) -> dict[str, Any]:
    return {
        "columns": [printable(name) for name in rows[0]],
        "rows": [[printable(cell) for cell in row.values()] for row in rows],
        "best": best_row,
        "found": f"Table of {len(rows)} {what}",
        "maps": [],
    }


def _map(grid: SettingGrid, quantity: ScaledQuantity, best: Outcome | None) -> dict[str, Any]:
    columns, rows = grid.labels
    known = sorted(quantity.of(outcome) for row in grid.cells for outcome in row if outcome is not None)
    face_of = heat_faces(known)

    def cell(outcome: Outcome | None) -> dict[str, Any] | None:
        if outcome is None:
            return None
        value = quantity.of(outcome)
        lines = {
            "time per batch": readable_s(outcome.seconds or 0.0),
            "memory": readable_bytes(outcome.held_bytes),
            "training": outcome.setting.training.value,
            "rejected": readable_reason(outcome.reason),
        }
        return {
            "text": short_number(value),
            "colour": hex_of(face_of(value)),
            "is_dark": is_dark(face_of(value)),
            "fits": outcome.fits,
            "is_best": best is not None and grid.place(outcome) == grid.place(best),
            "name": str(outcome.setting),
            "lines": [[name, printable(line)] for name, line in lines.items() if line],
        }

    cells = [[cell(outcome) for outcome in row] for row in grid.cells]
    return {"title": quantity.title, "names": grid.names, "columns": columns, "rows": rows, "cells": cells}


def _picture(figure: ShownFigure) -> str:
    """Return a picture as a data address, with the same bytes at each call."""
    data = BytesIO()
    figure.savefig(data, format="svg", metadata={"Date": None}, has_outlines=True)
    return f"data:image/svg+xml;base64,{b64encode(data.getvalue()).decode()}"
