"""What people see: tables, data, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.errors import InputError

if TYPE_CHECKING:
    from schedules.timeline import Timeline


def print_json(data: object) -> None:
    """Print plain data as JSON; NaN and infinity never get there."""
    print(json.dumps(data, indent=2, allow_nan=False))


def print_table(title: str, rows: Sequence[Mapping[str, str]], caption: str = "") -> None:
    """Print rows of ready-made cells; columns of numbers are aligned right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", caption=caption or None, caption_justify="left")
    for name in rows[0]:
        is_number = all(row[name][:1] in "-+0123456789" for row in rows)
        table.add_column(name, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*row.values())
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)


def seconds(value: float) -> str:
    """Return a time as people read it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g} s"


def num_bytes(value: float | None) -> str:
    """Return a size as people read it."""
    if value is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.0f} B"


def percent(value: float | None) -> str:
    """Return a share as people read it."""
    return "-" if value is None else f"{value:.2%}"


@contextmanager
def progress(text: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on a terminal; yield what is told the fraction done."""
    if not sys.stderr.isatty():
        yield lambda fraction: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write every span: .json (ours, lossless), .csv or .parquet."""
    if path.suffix == ".json":
        from schedules.formats.files import write_text
        from schedules.formats.timeline_json import timeline_to_json

        write_text(path, timeline_to_json(timeline))
    elif path.suffix in (".csv", ".parquet"):
        from simulator.frame import write_frame

        write_frame(timeline, path)
    else:
        raise InputError(f"{path}: got suffix {path.suffix!r}, expected .json, .csv or .parquet")


def emit(text: str, out: Path | None) -> None:
    """Write `text` to `out`, or print it."""
    if out is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    from schedules.formats.files import write_text

    write_text(out, text)
