"""Predicted makespans of GPTs beside runs on streams: the error and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gpu_rows.card import Card
from gpu_rows.model_runs import Case, verified
from gpu_rows.row import Row
from pipesched.simulator.analysis import readable_s
from pipesched.workflows.timelines import PARTS

GPT_10M = ("gpt:layers=8,width=320,heads=8,context=512", 128)
GPT_350M = ("gpt:layers=28,width=1024,heads=16,context=1024", 16)
"""Models, and micro-batches so large that the device works twice as long as the host launches."""
TINY = ("gpt:layers=6,width=64,heads=4,context=32", 4)
LIMIT = 0.02


def models_of(card: Card) -> Sequence[tuple[str, int]]:
    """Return (model, samples of a micro-batch) of the row."""
    return card.pick([GPT_10M, GPT_350M], [TINY])


def cases_of(card: Card) -> list[Case]:
    """Return the cases: all ranks share one device, or have processors of their own where the runtime has them."""
    shared = [
        Case(model, size, name, p)
        for model, size in models_of(card)
        for p in (2, 4)
        for name in ("1f1b", "gpipe")
        if name == "1f1b" or (model, size) != GPT_350M  # which does not fit under GPipe
    ]
    if not card.has_green_contexts:
        return shared
    green = (("has_green_contexts", True),)
    return [Case(*model, "1f1b", p, own=True, settings=green) for model in models_of(card) for p in (2, 4)] + shared


def lines(card: Card) -> Iterator[str]:
    """Yield the lines of this row's section."""
    yield "All ranks are on one device, and so they are in the prediction: ops share it by utilisation. The parts are"
    yield "relative to the measured makespan; step / path is the makespan over the longest path of the run's own op"
    yield "times; memory is the largest error of a device."
    if not card.has_green_contexts:
        yield "Without green contexts, which need a GPU."
    yield ""
    yield "| case | op | predicted | measured | error | costs | hand-over | rest | step / path | memory |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    yield from card.rows(cases_of(card), partial(_row, card), 8.0)


def _row(card: Card, case: Case) -> str:
    run = verified(card, case)
    times = " | ".join(map(readable_s, (run.op_s, run.predicted.makespan_s, run.makespan_s)))
    parts, path = ["-"] * len(PARTS), "-"
    if run.split is not None:
        makespan = run.split.makespan
        parts = [_share(makespan.share(getattr(makespan, f"{part}_s"))) for part in PARTS]
        path = f"{run.makespan_s / makespan.with_works_s:.3f}"
    memory = max((error for _, error in run.memory_errors.values()), key=abs, default=None)
    return f"| {case} | {times} | {run.makespan_error:+.1%} | {' | '.join(parts)} | {path} | {_share(memory)} |"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:+.1%}"


ROW = Row(
    "Makespan predicted and measured",
    f"rest of at most {LIMIT:.0%}, memory within 3 %",
    100.0,
    lines,
)
