"""The tables and figures of PipeOptim."""

from __future__ import annotations

from paper_rows.figure import Figure, Paper, drawing
from paper_rows.pipeoptim import accuracy_rows, overall_rows, scaling_row, schedule_rows, throughput_rows

PAPER = Paper(
    "pipeoptim",
    "PipeOptim: optimizer-dependent weight prediction (arXiv:2312.00839)",
    "Four stages, as in the paper. Its machine has P100 of 16 GB; networks that train here learn digits.",
    (
        Figure("Fig. 1", "1F1B has almost no bubble, and stale weights.", schedule_rows.fig_1),
        Figure(
            "Fig. 2", "PipeOptim's forwards read predicted weights of their backward's version.", schedule_rows.fig_2
        ),
        Figure("Table I", "The direction of a prediction is the optimizer's own.", schedule_rows.table_i),
        Figure("Table II", "PipeOptim keeps at most two copies of the weights.", schedule_rows.table_ii),
        Figure("Algorithm 1", "The workflow of a GPU.", schedule_rows.algorithm_1),
        drawing("Table III", "Optimizers, models and data sets.", "Settings; here digits and text."),
        Figure("Fig. 3", "SGDM: PipeOptim learns as GPipe, stashing worse.", accuracy_rows.fig_3),
        Figure("Fig. 4", "AdamW: PipeOptim is ahead of all.", accuracy_rows.fig_4),
        Figure("Fig. 5", "Adam: PipeOptim is as good as GPipe or better.", accuracy_rows.fig_5),
        Figure("Table IV", "Maximum accuracy by approach and optimizer.", accuracy_rows.table_iv),
        Figure("Fig. 6", "PipeOptim has the throughput of PipeDream, and more than GPipe.", throughput_rows.fig_6),
        Figure("Table V", "Largest batch that fits: PipeOptim's is at least PipeDream's.", throughput_rows.table_5),
        Figure("Fig. 7", "PipeOptim is ahead of vanilla 1F1B.", accuracy_rows.fig_7),
        Figure("Fig. 8", "PipeOptim scales to three nodes, near 2BW.", scaling_row.fig_8),
        Figure("Fig. 9", "ResNet-101: PipeOptim is the first at the target accuracy.", overall_rows.fig_9),
        Figure("Fig. 10", "Inception-V3: likewise.", overall_rows.fig_10),
        Figure("Table VI", "Epoch time and time to the target accuracy.", overall_rows.table_vi),
    ),
)
