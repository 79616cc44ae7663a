"""The tables and figures of the paper on stale weights."""

from __future__ import annotations

from paper_rows.figure import Paper

PAPER = Paper("stale_weights", "Pipelined training with stale weights", "", ())
