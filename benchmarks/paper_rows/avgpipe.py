"""The tables and figures of AvgPipe."""

from __future__ import annotations

from paper_rows.figure import Paper

PAPER = Paper("avgpipe", "AvgPipe: elastic averaging for pipelined training, PPoPP 2023", "", ())
