"""The tables and figures of PipeOptim."""

from __future__ import annotations

from paper_rows.figure import Paper

PAPER = Paper("pipeoptim", "PipeOptim: optimizer-dependent weight prediction", "", ())
