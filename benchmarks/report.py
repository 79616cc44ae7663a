"""Shared parts of the benchmarks' reports: the command line, the provenance of the numbers, and the pages."""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import torch

from pipesched.profiles.measuring import device_name
from pipesched.profiles.processes import num_cores

Kept = TypeVar("Kept")
"""The return value of a generator of lines."""
_LONGEST_ERROR = 200
"""Number of characters of an error in a row."""


def arguments_of(doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of the benchmark with the docstring `doc`; it has the option --out."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the report here")
    return parser


def add_rows(parser: argparse.ArgumentParser, rows: Mapping[str, object]) -> None:
    """Add the option --rows: names of rows, separated by commas; all by default."""

    def named(text: str) -> list[str]:
        names = text.split(",")
        if unknown := sorted({*names} - {*rows}):
            raise argparse.ArgumentTypeError(f"got {', '.join(unknown)}, expected some of {', '.join(rows)}")
        return names

    parser.add_argument("--rows", type=named, default=[*rows], help=f"some of {', '.join(rows)}")


def section_of(
    title: str, head: Iterable[str], goal: str, lines: Generator[str, None, Kept]
) -> Generator[str, None, Kept]:
    """Yield the part of a page that a row makes, with its time; return the return value of its lines.

    Args:
        title: Title of the row.
        head: The provenance of the numbers.
        goal: A goal for all lines; there may be none.
        lines: The lines of the row.
    """
    begun_s = time.monotonic()
    yield f"# {title}"
    yield ""
    yield from head
    if goal:
        yield f"Goal: {goal}."
    yield ""
    kept = yield from lines
    yield ""
    yield f"Took {time.monotonic() - begun_s:.0f} s."
    return kept


def error_line(error: BaseException) -> str:
    """Return an error as a short line."""
    text = " ".join(str(error).split()).replace("|", "/")
    return f"{type(error).__name__}: {text[:_LONGEST_ERROR]}"


def or_error(lines: Iterable[str]) -> Generator[str]:
    """Yield lines, or after an error a line with it: whatever ends one row does not end the others."""
    try:
        yield from lines
    except Exception as error:  # noqa: BLE001 -- any of them
        yield f"\n**Failed.** {error_line(error)}"


def show_seeds(
    doc: str | None, data: Iterable[str], report: Callable[[str, int], Iterable[str]], num_seeds: int = 12
) -> None:
    """Print the report for the data set (one of `data`) and the number of seeds of the command line; use one thread."""
    parser, names = arguments_of(doc), [*data]
    parser.add_argument("--data", choices=names, default=names[0])
    parser.add_argument("--seeds", type=int, default=num_seeds)
    arguments = parser.parse_args()
    show(report(arguments.data, arguments.seeds), arguments.out)


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of values of several seeds; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def beside(predicted_s: float, measured_s: Sequence[float], *others: str) -> str:
    """Return the cells of a row: the prediction, `others`, the median and the error, and the range of measurements."""
    median_s = statistics.median(measured_s)
    cells = [
        f"{predicted_s * 1e3:.1f} ms",
        *others,
        f"{median_s * 1e3:.1f} ms",
        f"{predicted_s / median_s - 1:+.1%}",
        f"{min(measured_s) * 1e3:.1f} to {max(measured_s) * 1e3:.1f} ms",
    ]
    return " | ".join(cells)


def within(limit: float, errors: Mapping[str, float]) -> str:
    """Return a sentence with the number of errors within `limit`, and the names of the others."""
    beyond = [f"{what} ({error:+.1%})" for what, error in errors.items() if abs(error) > limit]
    return f"Within {limit:.0%}: {len(errors) - len(beyond)} of {len(errors)}. Beyond: {', '.join(beyond) or 'none'}."


def provenance(command: str, load: float, how: str) -> Iterator[str]:
    """Yield the provenance of the numbers.

    Args:
        command: The command, without ``python benchmarks/``.
        load: Load of the machine before the run [processes].
        how: Further text, after a comma.
    """
    yield f"`python benchmarks/{command}`, {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__},"
    yield f"{device_name(torch.device('cpu'))}, {num_cores()} cores, load before {load:.2f}, {how}."


def show(lines: Iterable[str], out: Path | None) -> None:
    """Print each line of a report at once, and write the report to `out` at the end.

    A page may have several parts, each below a heading of the first level. A report replaces the part with its heading,
    or else becomes the last part; other parts are unchanged.
    """
    shown = []
    for line in lines:
        print(line, flush=True)
        shown.append(line)
    if out:
        parts = parts_of(out.read_text()) if out.exists() else {}
        parts[shown[0]] = "\n".join(shown) + "\n"
        out.write_text("\n".join(parts.values()))


def parts_of(page: str) -> dict[str, str]:
    """Return the parts of a page by their headings."""
    parts = {}
    for part in re.split(r"^(?=# )", page, flags=re.MULTILINE):
        if part.startswith("# "):
            parts[part.splitlines()[0]] = part.rstrip("\n") + "\n"
    return parts
