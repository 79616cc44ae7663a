"""The tables and figures of the paper on stale weights."""

from __future__ import annotations

from functools import partial

from paper_rows.figure import Figure, Paper, drawing
from paper_rows.stale_weights import accuracy_rows, memory_rows, schedule_rows, speed_rows

PAPER = Paper(
    "stale_weights",
    "Pipelined training with stale weights of deep CNNs (arXiv:1912.12675)",
    "A pair of pipeline registers makes two of the paper's stages, a forward and a backward one: K pairs are 2K + 2 "
    "stages, and K + 1 ranks of the schedule `stale_weights`. The text that we have lacks Tables 1 to 9; the paper's "
    "numbers below stand in its sentences. Networks that train are narrow stand-ins on scans of digits.",
    (
        drawing("Fig. 1", "Eight layers on four accelerators.", "`pipesched partition` cuts layers into stages."),
        Figure("Fig. 2", "Without pipelining, one accelerator is at work at a time.", schedule_rows.fig_2),
        drawing(
            "Fig. 3",
            "A pair of registers makes two forward and two backward stages.",
            "A pair of registers is a boundary between two stages, with a message for each direction.",
        ),
        Figure("Fig. 4", "2K + 1 accelerators are all at work; weights are 2K cycles old.", schedule_rows.fig_4),
        Figure("Table 1", "The places of the registers.", schedule_rows.table_1),
        Figure("Fig. 5", "With stale weights training converges as without.", accuracy_rows.fig_5),
        Figure("Table 2", "Few stages cost little accuracy, many stages much.", accuracy_rows.table_2),
        Figure("Table 3", "ResNet-20: more stages cost more accuracy.", accuracy_rows.table_3),
        Figure("Fig. 6", "The share of stale weights decides, not the degree of staleness.", accuracy_rows.fig_6),
        Figure("Fig. 7", "Hybrid training converges as training without pipelining.", accuracy_rows.fig_7),
        Figure("Table 4", "Hybrid training has the accuracy of training without pipelining.", accuracy_rows.table_4),
        Figure("Table 5", "CIFAR-10: two GPUs are up to 1.8 x one.", partial(speed_rows.outcome, 10)),
        Figure("Table 6", "CIFAR-100: likewise.", partial(speed_rows.outcome, 100)),
        Figure("Table 7", "Further activations cost at most 58 % for ResNet-56 to 362.", memory_rows.table_7),
        drawing("Table 8", "Learning rates of the ResNets.", "Settings; the text that we have lacks the table."),
        Figure("Algorithm 1", "Gradients of stale weights update the newest weights.", schedule_rows.algorithm_1),
        Figure("Table 9", "Weight stashing costs more memory than stale weights, batch 128.", memory_rows.table_9),
        Figure("Fig. 8", "Weight stashing weighs on small batches and large weights.", memory_rows.fig_8),
        Figure("Fig. 9", "VGG-16 on ImageNet: PipeDream needs 28 points more.", memory_rows.fig_9),
    ),
)
