"""Output on the terminal: tables, data, progress."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from textwrap import wrap
from threading import Event, Thread
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from pipesched.profiles import processes
from pipesched.schedules import common

if TYPE_CHECKING:
    from rich.text import Text

    from pipesched.schedules import Schedule
    from pipesched.workflows import Table

_WIDE = 10_000
"""Columns of a terminal with room for every table."""
_NARROWEST = 20
"""Columns of the narrowest terminal for folded tables and sentences."""
_LONG = 20_000
"""Ops whose simulation takes about half a second."""
_LONGEST_COMPLAINT, _LONGEST_WORD = 900, 300
"""Most characters of a line on stderr, and of a word in it or a value of the command line."""
_LONG_BYTES = 1_000_000
"""Bytes of the files of Timelines with some 20,000 ops."""


def print_json(command: str, data: Mapping[str, object], notes: Iterable[str] = ()) -> None:
    """Print the answer of a command as JSON."""
    print(json_answer(command, data, notes))


def json_answer(command: str, data: Mapping[str, object], notes: Iterable[str] = ()) -> str:
    """Return an answer as JSON: its format and version, plain data, and notes; NaN and infinity are refused."""
    head = {"format": f"pipesched.{command}", "version": 1}
    return json.dumps({**head, **data, "notes": [*notes]}, indent=2, allow_nan=False)


def complain(text: str) -> None:
    """Print one line of limited length on stderr."""
    for given in sorted(set(sys.argv[1:]), key=len, reverse=True):
        text = text.replace(given, common.shortened(given, _LONGEST_WORD))
    text = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda match: common.shortened(match[0], _LONGEST_WORD), text)
    line = terminal_line(" ".join(text.split()))
    try:
        print(f"pipesched: {common.shortened(line, _LONGEST_COMPLAINT)}", file=sys.stderr)
    except OSError:  # nobody can read it, and the exit code says the rest
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Drop the pending and future output of a standard stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def terminal_line(text: str) -> str:
    """Return `text` as a line of a terminal, with control characters escaped."""
    return common.printable(text)


def as_text(text: str, style: str = "") -> Text:
    """Return `text` as a literal for rich: without markup, emoji codes or controls."""
    from rich.text import Text

    return Text(terminal_line(text), style)


def print_coloured(lines: Sequence[str]) -> None:
    """Print lines with ANSI colours; if stdout is a file, print them without colours."""
    from rich.console import Console
    from rich.text import Text

    Console().print(Text.from_ansi("\n".join(lines)), soft_wrap=True)


def print_table(table: Table, *, most_columns: int | None = None) -> None:
    """Print a table with rows, with all columns that fit, or with all under `all_columns`.

    Columns of numbers are aligned right and never folded; the first column is never folded; headers and words are
    folded. The most important columns come first. Columns without room, and columns after `most_columns`, are named
    below. Empty columns are left out.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console()
    console.width = _terminal_width()
    rows = [{terminal_line(name): terminal_line(cell) for name, cell in row.items()} for row in table.rows]
    names = [name for name in rows[0] if _Columns.are_all_shown or _tells(rows, name)]
    shown = _fitting(rows, names, console.width)[: None if _Columns.are_all_shown else most_columns]
    left_out = names[len(shown) :]
    least = {name: _width(rows, name, console.width) for name in shown}
    if sum(3 + max(len(name), least[name]) for name in shown) < console.width:
        least = {name: max(len(name), least[name]) for name in shown}
    most = {name: max(least[name], *(cell_len(row[name]) for row in rows)) for name in shown}
    widths = _shared(console.width - 1 - sum(3 + width for width in least.values()), least, most)
    grid = Grid()
    for name in shown:
        is_number = _is_number(rows, name)
        header = Text("\n").join(map(as_text, wrap(name, widths[name])))
        is_named = name == shown[0] and any(" " in row[name] for row in rows)
        justify: Literal["left", "right"] = "right" if is_number and not is_named else "left"
        is_whole = widths[name] >= most[name] and (is_number or name == shown[0])
        grid.add_column(header, justify=justify, width=widths[name], no_wrap=is_whole, overflow="fold")
    for row in rows:
        grid.add_row(*(Text("\n").join(map(as_text, _lines_of(row[name], widths[name]))) for name in shown))
    with console.capture() as drawn:
        for line in _folded(table.title, console.width):
            console.print(as_text(line, "table.title"), soft_wrap=True)
        console.print(grid)
    sys.stdout.write(drawn.get())
    print_lines([*table.lines(shown), *([f"--wide also shows: {', '.join(left_out)}"] if left_out else [])])


def print_lines(lines: Iterable[str]) -> None:
    """Print sentences, folded at words to the width of the terminal; indented lines stay whole, for copying."""
    width = _terminal_width()
    for line in lines:
        for piece in [line] if line.startswith("    ") else _folded(line, width):
            print(terminal_line(piece))


def print_beside(head: str, text: str) -> None:
    """Print a sentence right of `head`, folded there to the width of the terminal."""
    width = max(_NARROWEST, _terminal_width() - len(head))
    for piece in _folded(text, width, hanging=0):
        print(terminal_line(head + piece))
        head = " " * len(head)


def _terminal_width() -> int:
    """Return the columns of the terminal, within limits."""
    from rich.console import Console

    return _WIDE if _Columns.are_all_shown else min(max(_NARROWEST, Console().width), _WIDE)


def _folded(line: str, width: int, hanging: int = 2) -> list[str]:
    """Return the lines of a sentence, with later lines indented; a number and its unit stay together."""
    indent = " " * (hanging + len(line) - len(line.lstrip()))
    whole = re.sub(r"(?<=[0-9]) (?=(%|[mun]?s|[KMGT]i?B|B)(?![a-z]))|(?<=\(op) (?=[0-9])", "\0", line)
    pieces = wrap(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [piece.replace("\0", " ") for piece in pieces]


@contextmanager
def all_columns(are_all_shown: bool) -> Iterator[None]:
    """Set whether tables inside the block have all their columns, at any width."""
    before = _Columns.are_all_shown
    _Columns.are_all_shown = are_all_shown
    try:
        yield
    finally:
        _Columns.are_all_shown = before


class _Columns:
    """The columns of tables: all that fit, or all."""

    are_all_shown = False


def _tells(rows: Sequence[Mapping[str, str]], name: str) -> bool:
    """Return whether a column has any content; the first column always counts."""
    return name == next(iter(rows[0])) or any(row[name] not in ("", "-") for row in rows)


def _fitting(rows: Sequence[Mapping[str, str]], names: list[str], width: int) -> list[str]:
    """Return the columns that fit into a table of this width, in order."""
    used = 1
    for index, name in enumerate(names):
        used += 3 + _width(rows, name, width)
        if index and used > width:
            return names[:index]
    return names


def _shared(spare: int, least: Mapping[str, int], most: Mapping[str, int]) -> dict[str, int]:
    """Return the widths of columns: each gets its least width, and the columns with the largest demand get the rest."""
    widths = dict(least)
    for _ in range(spare):
        name = max(widths, key=lambda name: most[name] - widths[name])
        if widths[name] >= most[name]:
            break
        widths[name] += 1
    return widths


def _width(rows: Sequence[Mapping[str, str]], name: str, most: int) -> int:
    """Return the least width of a column, up to `most`: its longest word, or its longest cell if it is not folded.

    The names of rows take at most half of the room.
    """
    from rich.cells import cell_len

    is_first = name == next(iter(rows[0]))
    is_whole = is_first or _is_number(rows, name)
    cells = [row[name] for row in rows]
    pieces = cells if is_whole else [word for cell in cells for word in _unparted(cell)]
    longest = max(map(cell_len, [*name.split(), *pieces]), default=0)
    return min(longest, most // 2) if is_first else longest


def _unparted(cell: str) -> list[str]:
    lines = _lines_of(cell, 0)
    return lines if len(lines) > 1 or re.fullmatch(r"[a-z-]+ [0-9.]+ [mun]?s", cell) else cell.split()


def _lines_of(cell: str, width: int) -> list[str]:
    """Return the lines of a cell of some width; a time and its label stay together."""
    from rich.cells import cell_len

    first, *others = re.sub(r"( [mun]?s), (?=[a-z])", r"\1,\n", cell).split("\n")
    lines = [first]
    for piece in others:
        if cell_len(f"{lines[-1]} {piece}") <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines


def _is_number(rows: Sequence[Mapping[str, str]], name: str) -> bool:
    return all(re.match(r"[-+]?[0-9][0-9.,]*(-[0-9]+)?%?( |$)|-?$", row[name]) for row in rows)


def print_result(table: Table, notes: Sequence[str] = ()) -> None:
    """Print the table of a result, and notes below its caption."""
    if table.rows:
        print_table(table.noted(notes))
    else:
        print_lines(filter(None, (table.title, *table.noted(notes).lines(()))))


def print_results(tables: Iterable[Table]) -> None:
    """Print tables one below another."""
    for table in tables:
        print_result(table)


class Tick(Protocol):
    """Receives the progress of some work."""

    def __call__(self, fraction: float, state: str = "", /) -> None:
        """Receive the finished fraction, and a further state in words."""


@contextmanager
def progress_lines(text: str) -> Iterator[Tick]:
    """Print a line on stderr now and then during some work; yield the function that receives the finished fraction."""
    begun_s, is_over, told = time.monotonic(), Event(), deque([(0.0, "")], maxlen=1)

    def tick(fraction: float, state: str = "", /) -> None:
        told.append((fraction, state))

    def tell() -> None:
        while not is_over.wait(_Lines.every_s):
            fraction, state = told[-1]
            parts = [f"{time.monotonic() - begun_s:.0f} s", f"{fraction:.0%}" if fraction else "", state]
            complain(f"{text}: {', '.join(filter(None, parts))}")

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield tick
    finally:
        is_over.set()
        teller.join()


class _Lines:
    """The lines of progress; `every_s` is the interval between two lines [s]."""

    every_s = 30.0


@contextmanager
def spinner(text: str, *, if_long: bool) -> Iterator[None]:
    """Show a spinner on a terminal during work of unknown progress that may be long."""
    if not if_long or not sys.stderr.isatty():
        with progress_lines(text) if if_long else nullcontext():
            yield
        return
    from rich.console import Console

    with Console(stderr=True).status(as_text(text)):
        yield


def simulating(schedule: Schedule) -> AbstractContextManager[None]:
    """Show a spinner on a terminal during a long simulation of a schedule."""
    return spinner(f"simulating {schedule.name}", if_long=len(schedule.columns.codes) > _LONG)


def comparing(timelines: Sequence[Path]) -> AbstractContextManager[None]:
    """Show a spinner on a terminal during a long comparison of Timeline files."""
    names = " and ".join(path.name for path in timelines)
    return spinner(f"comparing {names}", if_long=sum(path.stat().st_size for path in timelines) > _LONG_BYTES)


@contextmanager
def progress_bar(text: str) -> Iterator[Tick]:
    """Show a bar on a terminal; yield the receiver of the finished fraction. A model's prints go to stderr."""
    if not sys.stderr.isatty():
        with processes.prints_to_stderr(), progress_lines(text) as tick:
            yield tick
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    described = TextColumn("{task.description}", style="progress.description", markup=False)
    columns = [described, *Progress.get_default_columns()[1:]]
    with processes.prints_to_stderr(), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(terminal_line(text), total=1.0)

        def tick(fraction: float, state: str = "", /) -> None:
            bar.update(task, completed=fraction, description=terminal_line(f"{text}: {state}" if state else text))

        yield tick
