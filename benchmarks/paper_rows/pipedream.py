"""The tables and figures of PipeDream."""

from __future__ import annotations

from paper_rows.figure import Paper

PAPER = Paper("pipedream", "PipeDream: generalized pipeline parallelism, SOSP 2019", "", ())
