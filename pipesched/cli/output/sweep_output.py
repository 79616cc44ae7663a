"""The result of ``sweep`` as a file: a table for programs or people, a picture, or a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.cli.output.output_files import PAGE, TABLE, emit, table_text
from pipesched.cli.terminal import json_answer
from pipesched.schedules.formats import suffix_of
from pipesched.simulator.views import FIGURE_SUFFIXES

if TYPE_CHECKING:
    from pipesched.workflows.sweeping import SweepResult

SWEEP = (*TABLE, ".parquet", *FIGURE_SUFFIXES, PAGE)


def write_sweep(result: SweepResult, path: Path, notes: Sequence[str]) -> None:
    """Write every setting to `path`, which has one of the suffixes of `SWEEP`; a page with notes."""
    match suffix_of(path):
        case ".parquet":
            from pipesched.simulator.views import write_parquet

            write_parquet(result.to_frame(), path)
        case ".html":
            emit(result.page(notes), path)
        case suffix if suffix in FIGURE_SUFFIXES:
            from pipesched.simulator.views import draw_sweep

            draw_sweep(result.outcomes, result.by, path)
        case ".json":
            emit(json_answer("sweep", result.to_dict()), path)
        case suffix:
            emit(table_text(result.to_rows(), suffix), path)
