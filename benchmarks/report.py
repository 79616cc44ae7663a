"""What the reports of the benchmarks share: the command line that asks for one, what was run where, and its lines."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from pipesched.profiles.measuring import device_name
from pipesched.profiles.processes import num_cores


def arguments_of(doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark with this docstring, which takes --out."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the report here")
    return parser


def show_seeds(doc: str | None, data: Iterable[str], report: Callable[[str, int], Iterable[str]]) -> None:
    """Show the report on one of `data`, over so many seeds, both as the command line says; on one thread."""
    parser = arguments_of(doc)
    parser.add_argument("--data", choices=[*data], default="digits")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    show(report(arguments.data, arguments.seeds), arguments.out)


def provenance(command: str, load: float, how: str) -> Iterator[str]:
    """Yield what made the numbers.

    Args:
        command: Behind ``python benchmarks/``.
        load: Of the machine before [processes].
        how: What else there is to say, after a comma.
    """
    yield f"`python benchmarks/{command}`, {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__},"
    yield f"{device_name(torch.device('cpu'))}, {num_cores()} cores, load before {load:.2f}, {how}."


def show(lines: Iterable[str], out: Path | None) -> None:
    """Print a report line by line, as it comes; the whole of it goes to `out` at the end.

    A page may have several parts, each below a heading of the first level: a report takes the place of the one that has
    its heading, or comes behind the last, and leaves the others as they are.
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
