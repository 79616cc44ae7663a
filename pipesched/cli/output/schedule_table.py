"""Several schedules, as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipesched.cli.output.terminal import num_bytes, percent, print_table, seconds

if TYPE_CHECKING:
    from pipesched.simulator.analysis import Summary


def _number(value: float) -> str:
    return f"{value:.4g}"


def _count(value: int) -> str:
    return f"{value:,}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_COLUMNS: tuple[tuple[str, tuple[str, ...], Callable[[Any], str]], ...] = (
    ("schedule", ("name",), str),
    ("makespan", ("makespan_s",), seconds),
    ("bubble fraction", ("bubble_fraction",), percent),
    ("bubble overhead", ("bubble_overhead",), percent),
    ("bubble of longest span", ("bubble_of_longest_span",), percent),
    ("steady / micro-batch", ("steady_s_per_microbatch",), seconds),
    ("peak memory", ("peak_memory_worst_bytes", "peak_memory_best_bytes"), num_bytes),
    ("micro-batches", ("peak_microbatches_worst", "peak_microbatches_best"), _number),
    ("weight versions", ("weight_versions",), _count),
    ("model copies", ("model_copies",), _number),
    ("messages", ("messages",), _count),
    ("sent", ("sent_bytes",), num_bytes),
    ("fits", ("fits",), _yes),
)
"""The title, the fields that stand under it, and how a value is shown; what is not here is for programs only."""

_CAPTION = """\
bubble_fraction: idle / (devices x makespan); bubble_overhead: (makespan - busiest device) / busiest device; \
of longest span: its idle share
steady: seconds per micro-batch when batches follow one another, each stage stepping between, or without a flush in \
the long run
peak memory, and micro-batches in flight at most: of the device with most / of the one with least; \
model copies: weights on all devices together, old versions and predicted ones included"""


def print_summaries(summaries: Sequence[Summary], notes: Sequence[str] = ()) -> None:
    """Print a table, a row per schedule, and the notes; a column of which nothing is known is left out."""
    known = [
        column
        for column in _COLUMNS
        if any(getattr(each, name) is not None for each in summaries for name in column[1])
    ]
    rows = [{title: _cell(summary, names, show) for title, names, show in known} for summary in summaries]
    refused = [
        reason if reason.startswith(f"{summary.name}:") else f"{summary.name}: {reason}"
        for summary in summaries
        if (reason := summary.reason) is not None
    ]
    print_table("Schedules, predicted", rows, "\n".join([_CAPTION, *notes, *refused]))


def _cell(summary: Summary, names: Sequence[str], show: Callable[[Any], str]) -> str:
    values = [getattr(summary, name) for name in names]
    return "-" if None in values else " / ".join(map(show, values))
