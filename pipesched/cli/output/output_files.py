"""Output files: checked before the work begins, written at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError, NotThereError
from pipesched.cli.terminal import complain, json_answer, print_json, print_results
from pipesched.schedules import formats
from pipesched.schedules.formats import postpone_files, require_folder, suffix_of, write_text
from pipesched.simulator import views
from pipesched.simulator.analysis import TABLE_FORMATS

if TYPE_CHECKING:
    from pipesched.schedules import Timeline
    from pipesched.simulator.views import RunDetails
    from pipesched.workflows import Table

PAGE = ".html"
TIMELINE = (".json", ".csv", ".parquet", PAGE)
JSON = (".json",)
CSV = (".csv",)
TABLE = tuple(TABLE_FORMATS)


def check_outputs(*outputs: tuple[Path | None, Collection[str]], journal: Path | None = None) -> None:
    """Refuse files that cannot be written, before any is written; all move to their places once all are complete.

    Args:
        outputs: Pairs of (path, or None if no file is requested; valid suffixes). An empty suffix allows a name without
            suffix. Without suffixes, any suffix is valid.
        journal: A file that exists from the beginning, and grows.

    Raises:
        InputError: A suffix is invalid, a path is a folder, or two outputs have the same path.
        ScheduleError: The folder does not exist or is not writable.
        NotThereError: Parquet without pyarrow.
    """
    from pipesched.simulator import SimulationError

    _asked.update({path: _stamp(path) for path, _ in (*outputs, (journal, ())) if path is not None})
    seen: set[str] = set()
    for path, suffixes in (*outputs, (journal, ())):
        if path is None:
            continue
        if suffixes and suffix_of(path) not in suffixes:
            expected = " or ".join(suffix or "none" for suffix in suffixes)
            is_picture = suffix_of(path) in views.GANTT_SUFFIXES
            has_option = any(others == views.GANTT_SUFFIXES for _, others in outputs)
            by = f"--gantt {path}" if has_option else f"'pipesched gantt --out {path}'"
            drawn = f"; a picture is drawn by {by}" if is_picture else ""
            raise InputError(
                f"{path}: got suffix {path.suffix!r}, expected {expected}; try {path.stem}{next(iter(suffixes))}{drawn}"
            )
        if path.is_dir():
            raise InputError(f"{path}: got a folder, expected a file's name; try {path / 'result'}{path.suffix}")
        require_folder(path.parent, path)
        target = os.path.realpath(path)  # opening the file reports a loop of links
        if target in seen:
            raise InputError(
                f"{path}: got this file for two outputs, expected a file for each; try another name for one"
            )
        seen.add(target)
        if suffix_of(path) == ".parquet":
            try:
                views.require_parquet(path)
            except SimulationError as error:
                raise NotThereError(str(error)) from error
    postpone_files(path for path, _ in outputs if path is not None)


_asked: dict[Path, tuple[int, int]] = {}
"""Files that the command is to write, with their previous state."""


def say_written() -> None:
    """Print on stderr the requested files that have been written."""
    written = [str(path) for path, stamp in _asked.items() if path.is_file() and _stamp(path) != stamp]
    _asked.clear()
    if written:
        complain(f"wrote {', '.join(written)}")


def _stamp(path: Path) -> tuple[int, int]:
    """Return a stamp that changes when a file is written."""
    if not path.is_file():
        return 0, 0
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def write_timeline(
    timeline: Timeline, path: Path, details: RunDetails | None = None, notes: Sequence[str] = ()
) -> None:
    """Write a Timeline in the format of the suffix.

    A ``.json`` file is lossless. A ``.csv`` or ``.parquet`` file has a row per span. An ``.html`` page shows the spans,
    the details and the notes.
    """
    if suffix_of(path) == PAGE:
        views.draw_gantt([timeline], path, details=[] if details is None else [details], notes=notes)
    elif suffix_of(path) == ".json":
        emit(formats.timeline_to_json(timeline), path)
    else:
        views.write_frame(timeline, path)


def print_answer(
    command: str,
    data: Mapping[str, object],
    notes: Iterable[str],
    tables: Iterable[Table],
    *,
    is_json: bool,
    out: Path | None = None,
) -> None:
    """Print the answer of a command: as JSON, with notes, or as tables; write the JSON to `out`, if there is one."""
    notes = [*notes]
    if out is not None:
        emit(json_answer(command, data, notes), out)
    if is_json:
        print_json(command, data, notes)
    else:
        print_results(tables)


def emit(text: str, out: Path | None) -> None:
    """Write `text` to `out`, or print it."""
    if out is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    write_text(out, text)
