"""Losses, gradients and weights of eight schedules on streams, beside the un-pipelined model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import torch

from gpu_rows.card import Card
from gpu_rows.row import Row
from gpu_rows.whole_model import MODEL, SAME_ORDER, SCHEDULES, TOLERANCE, compare

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product: cuBLAS is deterministic then


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    yield f"`{MODEL}`, 8 micro-batches, float32, deterministic algorithms; differences relative to the largest number."
    yield ""
    yield "| schedule, ranks | losses | gradients | weights | verdict |"
    yield "|---|---|---|---|---|"
    cases = [f"{name}, {p}" for name in SCHEDULES for p in (2, 4)]
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield from card.rows(cases, partial(_row, card), 1.5)
    finally:
        torch.use_deterministic_algorithms(mode=False)


def _row(card: Card, case: str) -> str:
    name, _, num_ranks = case.partition(", ")
    difference = compare(name, int(num_ranks), card.device)
    limit = 0.0 if name in SAME_ORDER else TOLERANCE
    verdict = "all bits equal" if not difference.largest else "equal" if difference.largest <= limit else "**differs**"
    return f"| {case} | {difference.losses:.1e} | {difference.gradients:.1e} | {difference.weights:.1e} | {verdict} |"


ROW = Row(
    "Losses and gradients beside the un-pipelined model",
    f"all bits equal where the order of sums is the same, else within {TOLERANCE:g}",
    60.0,
    lines,
)
