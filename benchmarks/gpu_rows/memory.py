"""Peak memory of each rank, inside ops too, beside its prediction."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpu_rows.card import Card
from gpu_rows.model_runs import Case, verified
from gpu_rows.predictions import GPT_10M, TINY
from gpu_rows.row import Row

LIMIT = 0.03
SCHEDULES = ("gpipe", "1f1b", "zb_h1", "interleaved", "pipedream", "wpipe")


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    yield "A rank's bytes are the allocations of its own ops: the allocator's peak inside each op."
    yield ""
    yield "| case | peak of each rank, MB | error of each rank |"
    yield "|---|---|---|"
    model, size = card.pick(GPT_10M, TINY)
    cases = [Case(model, size, name, 2, own=True) for name in SCHEDULES]
    yield from card.rows(cases, partial(_row, card), 5.0)


def _row(card: Card, case: Case) -> str:
    errors = verified(card, case).memory_errors.values()
    held = ", ".join(f"{num_bytes / 1e6:.1f}" for num_bytes, _ in errors)
    return f"| {case} | {held} | {', '.join(f'{error:+.1%}' for _, error in errors)} |"


ROW = Row("Peak memory predicted and measured", f"within {LIMIT:.0%}", 40.0, lines)
