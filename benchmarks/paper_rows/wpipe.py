"""The tables and figures of WPipe."""

from __future__ import annotations

from paper_rows.figure import Paper

PAPER = Paper("wpipe", "WPipe: group-based interleaved pipeline parallelism, ICLR 2022", "", ())
