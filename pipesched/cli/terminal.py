"""Output on the terminal: tables, data, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.text import Text

    from pipesched.schedules import Schedule
    from pipesched.workflows import Table

_LONG = 20_000
"""Ops whose simulation takes about half a second."""
_LONG_BYTES = 1_000_000
"""Bytes of the files of Timelines: some 20,000 ops, too."""


def print_json(data: object) -> None:
    """Print plain data as JSON; NaN and infinity never get there."""
    print(json.dumps(data, indent=2, allow_nan=False))


def complain(text: str) -> None:
    """Print one line on stderr."""
    print(f"pipesched: {terminal_line(' '.join(text.split()))}", file=sys.stderr)


def terminal_line(text: str) -> str:
    """Return `text` as a line of a terminal, whatever is in its names."""
    from pipesched.schedules import printable

    return printable(text)


def as_text(text: str, style: str = "") -> Text:
    """Return `text` as rich shows it, letter by letter: nothing in it is markup, an emoji's code or a control."""
    from rich.text import Text

    return Text(terminal_line(text), style)


def print_table(title: str, rows: Sequence[Mapping[str, str]], caption: str = "") -> None:
    """Print rows of ready-made cells, with as many columns as fit; the last line names those that do not.

    Columns of numbers are aligned right and never folded, and neither is the first; headers and words are.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 200)
    shown, left_out = _fitting(rows, console.width)
    has_room = sum(3 + max(len(name), _width(rows, name)) for name in shown) < console.width
    table = Table(title=as_text(title, "table.title") if title else None, title_justify="left")
    for name in shown:
        is_number, min_width = _is_number(rows, name), _width(rows, name)
        header = Text("\n").join(map(as_text, [name] if has_room else wrap(name, min_width)))
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(header, justify=justify, min_width=min_width, no_wrap=is_number or name == shown[0])
    for row in rows:
        table.add_row(*(as_text(row[name]) for name in shown))
    with console.capture() as drawn:
        console.print(table)
        if caption:  # below the table, not inside it: there it would be folded to the table's width
            console.print(*map(as_text, caption.split("\n")), sep="\n", soft_wrap=True)
        if left_out:
            console.print(as_text(f"too wide for {console.width} columns: {', '.join(left_out)}"), soft_wrap=True)
    sys.stdout.write(drawn.get())


def _fitting(rows: Sequence[Mapping[str, str]], width: int) -> tuple[list[str], list[str]]:
    """Return the columns that a table of this width has room for, in order, and those that it has not."""
    names, used = [*rows[0]], 1
    for index, name in enumerate(names):
        used += 3 + _width(rows, name)
        if index and used > width:
            return names[:index], names[index:]
    return names, []


def _width(rows: Sequence[Mapping[str, str]], name: str) -> int:
    """Return how narrow a column may be: as its longest word, or cell where that is not to be folded."""
    from rich.cells import cell_len

    is_whole = name == next(iter(rows[0])) or _is_number(rows, name)
    cells = [row[name] for row in rows]
    return max(map(cell_len, [*name.split(), *(cells if is_whole else " ".join(cells).split())]), default=0)


def _is_number(rows: Sequence[Mapping[str, str]], name: str) -> bool:
    return all(row[name][:1] in "-+0123456789" for row in rows)


def print_result(table: Table, notes: Sequence[str] = ()) -> None:
    """Print the table of a result, and notes below its caption."""
    print_table(table.title, table.rows, "\n".join([*([table.caption] if table.caption else []), *notes]))


def seconds(value: float) -> str:
    """Return a time as people read it."""
    from pipesched.simulator.analysis import readable_s

    return readable_s(value)


def num_bytes(value: float | None) -> str:
    """Return a size as people read it."""
    from pipesched.simulator.analysis import readable_bytes

    return readable_bytes(value)


def percent(value: float | None) -> str:
    """Return a share as people read it."""
    from pipesched.simulator.analysis import readable_share

    return readable_share(value)


@contextmanager
def spinner(text: str, *, if_long: bool) -> Iterator[None]:
    """Show on a terminal that something is under way, where it may take long and nobody knows how far it is."""
    if not if_long or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(as_text(text)):
        yield


def simulating(schedule: Schedule) -> AbstractContextManager[None]:
    """Show on a terminal that a schedule is simulated, where that takes long."""
    return spinner(f"simulating {schedule.name}", if_long=sum(map(len, schedule.ops)) > _LONG)


def comparing(timelines: Sequence[Path]) -> AbstractContextManager[None]:
    """Show on a terminal that files of Timelines are compared, where that takes long."""
    names = " and ".join(path.name for path in timelines)
    return spinner(f"comparing {names}", if_long=sum(path.stat().st_size for path in timelines) > _LONG_BYTES)


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on a terminal; yield what is told the fraction done. What a model prints meanwhile goes to stderr."""
    from pipesched.profiles.processes import prints_to_stderr

    if not sys.stderr.isatty():
        with prints_to_stderr():
            yield lambda fraction: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    described = TextColumn("{task.description}", style="progress.description", markup=False)
    columns = [described, *Progress.get_default_columns()[1:]]
    with prints_to_stderr(), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(terminal_line(text), total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)
