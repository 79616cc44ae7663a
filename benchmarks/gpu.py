"""Measurements of the executor and its predictions on a GPU; each row is written as soon as it is measured.

    python benchmarks/gpu.py --minutes 7 [--rows equal,makespan]
    python benchmarks/gpu.py --dry-run                           # the same on a CPU, with tiny models

The page is benchmarks/results/gpu-<device>.md, a dry run's build/gpu-dry-run.md. A row that does not fit into the
minutes is skipped with a line; a row that fails has its error in its place, and the others continue.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from gpu_rows import equality, faults, launching, memory, predictions, rivals, shapes, utilisation
from gpu_rows.card import Card, file_of, free_memory, provenance
from gpu_rows.row import Row
from report import add_rows, or_error, section_of, show

from pipesched.executor.runs.local_runner import prepare_cuda
from pipesched.workflows import session

ROOT = Path(__file__).parents[1]
ROWS = {
    "equal": equality.ROW,
    "makespan": predictions.ROW,
    "memory": memory.ROW,
    "utilisation": utilisation.ROW,
    "shapes": shapes.ROW,
    "pytorch": rivals.ROW,
    "faults": faults.ROW,
    "launching": launching.ROW,
}
LEAST_S = 3.0
"""Least remaining time for a row to begin [s]."""
GRACE_S = 45.0
"""Time after the limit at which the program ends even if the device hangs [s]."""


def section(name: str, row: Row, card: Card, command: str) -> Iterator[str]:
    """Return the lines of a part of the page; a row that fails, or has no time left, has one line with the reason."""
    return section_of(row.title, provenance(card, f"gpu.py --rows {name}{command}"), row.goal, _lines(row, card))


def _lines(row: Row, card: Card) -> Generator[str]:
    if card.left_s < LEAST_S:
        yield f"Skipped: {max(0.0, card.left_s):.0f} s were left."
        return
    yield from or_error(row.lines(replace(card, ends_s=min(card.ends_s, time.monotonic() + row.seconds))))
    free_memory()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=7.0, help="time for all rows (default: 7)")
    add_rows(parser, ROWS)
    parser.add_argument("--dry-run", action="store_true", help="run tiny models on a CPU, into build/")
    arguments = parser.parse_args()
    if not 0 < arguments.minutes <= 60:
        parser.error(f"--minutes: got {arguments.minutes:g}, expected a number above 0, and at most 60")
    prepare_cuda()
    if not arguments.dry_run and not torch.cuda.is_available():
        parser.error("no GPU: torch.cuda.is_available() is false; try --dry-run")
    seconds = 60 * arguments.minutes
    card = Card("cpu" if arguments.dry_run else "cuda", time.monotonic() + seconds)
    page = file_of(card, ROOT)
    page.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True)
    command = f" --minutes {arguments.minutes:g}" + (" --dry-run" if arguments.dry_run else "")
    with session():
        for name in arguments.rows:
            show(section(name, ROWS[name], card, command), page)
    faulthandler.cancel_dump_traceback_later()
    print(f"written: {page.relative_to(ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
