"""The tables and figures of the paper on stale weights."""

from __future__ import annotations

from paper_rows.figure import Paper
from paper_rows.stale_weights import accuracy_rows, memory_rows, schedule_rows, speed_rows

_ORDER = (
    *("Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Table 1", "Fig. 5", "Table 2", "Table 3", "Fig. 6", "Fig. 7", "Table 4"),
    *("Table 5", "Table 6", "Table 7", "Table 8", "Algorithm 1", "Table 9", "Fig. 8", "Fig. 9"),
)
_FIGURES = schedule_rows.FIGURES | memory_rows.FIGURES | accuracy_rows.FIGURES | speed_rows.FIGURES

PAPER = Paper(
    "stale_weights",
    "Pipelined training with stale weights of deep CNNs (arXiv:1912.12675)",
    "A pair of pipeline registers makes two of the paper's stages, a forward and a backward one: K pairs are 2K + 2 "
    "stages, and K + 1 ranks of the schedule `stale_weights`. The text that we have lacks Tables 1 to 9; the paper's "
    "numbers below stand in its sentences. Networks that train are narrow stand-ins on scans of digits.",
    tuple(_FIGURES[name] for name in _ORDER),
)
