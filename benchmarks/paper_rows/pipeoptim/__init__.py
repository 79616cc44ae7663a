"""The tables and figures of PipeOptim."""

from __future__ import annotations

from paper_rows.figure import Paper
from paper_rows.pipeoptim import accuracy_rows, overall_rows, scaling_row, schedule_rows, throughput_rows

_ORDER = (
    *("Fig. 1", "Fig. 2", "Table I", "Table II", "Algorithm 1", "Table III", "Fig. 3", "Fig. 4", "Fig. 5", "Table IV"),
    *("Fig. 6", "Table V", "Fig. 7", "Fig. 8", "Fig. 9", "Fig. 10", "Table VI"),
)
_FIGURES = (
    schedule_rows.FIGURES | accuracy_rows.FIGURES | throughput_rows.FIGURES | scaling_row.FIGURES | overall_rows.FIGURES
)

PAPER = Paper(
    "pipeoptim",
    "PipeOptim: optimizer-dependent weight prediction (arXiv:2312.00839)",
    "Four stages, as in the paper. Its machine has P100 of 16 GB; networks that train here learn digits.",
    tuple(_FIGURES[name] for name in _ORDER),
)
