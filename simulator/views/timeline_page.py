"""A page of Timelines: one HTML file with its data and its script, which draws, zooms and explains them offline."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path

from pipesched.schedules import Timeline, printable
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import critical_path
from pipesched.simulator.views.gantt_chart import WHOLE, ChartOptions, gantt_layout
from pipesched.simulator.views.page_data import page_data
from pipesched.simulator.views.page_table import page_table
from pipesched.simulator.views.run_details import RunDetails, title_of


def timeline_page(
    timelines: Sequence[Timeline],
    title: str = "",
    caption: str = "",
    details: Sequence[RunDetails] = (),
    options: ChartOptions = WHOLE,
) -> str:
    """Return the Timelines as a page for a browser, which asks for nothing else: no other file, no network.

    Runs of one schedule on the same devices are paired, others stand one under another, as in `gantt_figure`.

    Args:
        timelines: At least one.
        title: Above all; empty: as in `gantt_figure`.
        caption: Below the title.
        details: What is known of each beside its Timeline; empty: nothing.
        options: What is shown at first; memory always is.

    Raises:
        SimulationError: There is no Timeline, or nothing in one takes time.
    """
    if not timelines:
        raise SimulationError("timelines: got none, expected at least one; try one that was simulated or measured")
    known = tuple(details) or (RunDetails(),) * len(timelines)
    chart = gantt_layout(timelines)
    paths = [critical_path(timeline) for timeline in chart.timelines]
    heading = printable(title or title_of(chart, known))
    data = page_data(chart, paths, [run.memory_bytes for run in known], options) | {
        "title": heading,
        "caption": "\n".join(map(printable, caption.splitlines())),
        "table": page_table(chart, paths, known),
    }
    style, drawing, script = _text("timeline_page.css"), _text("timeline_drawing.js"), _text("timeline_page.js")
    parts = {
        "title": escape(heading),
        "style": style,
        "drawing": drawing,
        "script": script,
        "hashes": f"script-src {_hash(drawing)} {_hash(script)}; style-src {_hash(style)}",
        "data": _json(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _text("timeline_page.html"))


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source expression that lets a browser take this style or script, and no other."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _json(data: object) -> str:
    """Return `data` so that nothing in it ends its element: ASCII, and of that no ``<``, ``>`` or ``&``."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda char: f"\\u{ord(char[0]):04x}", text)
