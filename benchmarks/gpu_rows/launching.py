"""The launch-bound limit: the time that one host thread takes to launch an op."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpu_rows.card import Card
from gpu_rows.model_runs import Case, verified
from gpu_rows.predictions import GPT_10M
from gpu_rows.row import Row
from pipesched.schedules.ops import Compute
from pipesched.simulator.analysis import readable_s

SMALL = ("gpt:layers=8,width=64,heads=4,context=32", 1)
"""Model and micro-batch size; so small that the device waits for the host."""


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    yield "One thread launches the ops of all ranks. Launching per op is the time to launch a step over its ops that"
    yield "compute. The host bounds the run if it is longer than the time of an op over the ranks that run at once."
    yield ""
    yield "| case | launching, per op | op on the device | launching of a step | makespan |"
    yield "|---|---|---|---|---|"
    models = card.pick([SMALL, GPT_10M], [SMALL])
    cases = [Case(model, size, "1f1b", p) for model, size in models for p in (1, 2, 4)]
    yield from card.rows(cases, partial(_row, card), 5.0)


def _row(card: Card, case: Case) -> str:
    run = verified(card, case)
    launch_s = run.measured.timeline.launch_s
    if launch_s is None:
        return f"| {case} | - | {readable_s(run.op_s)} | - | {readable_s(run.makespan_s)} |"
    num_ops = sum(isinstance(span.op, Compute) for span in run.measured.timeline.spans)
    times = (launch_s / num_ops, run.op_s, launch_s, run.makespan_s)
    return f"| {case} | {' | '.join(map(readable_s, times))} |"


ROW = Row("The launch-bound limit", "the shortest op that a GPU has time for", 20.0, lines)
