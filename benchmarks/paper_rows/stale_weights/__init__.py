"""The tables and figures of the paper on stale weights."""

from __future__ import annotations

from paper_rows.figure import Paper
from paper_rows.stale_weights import memory_rows, schedule_rows

_FIGURES = schedule_rows.FIGURES | memory_rows.FIGURES
PAPER = Paper("stale_weights", "Pipelined training with stale weights", "", tuple(_FIGURES.values()))
