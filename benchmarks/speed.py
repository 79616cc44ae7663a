"""Speed of the tool beside its goals: engines, builders, sweeps, searches, whole processes.

    python benchmarks/speed.py [--rows engines,start] [--out benchmarks/results/speed.md]

Every group of rows is a part of the page, which is written as soon as it is measured. Engines take turns in one
process and are compared by its processor time; whole processes are timed by the clock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator

from report import add_rows, arguments_of, provenance, section_of, show
from speed_rows import builders, commands, engines, sweeps
from speed_rows.row import Row

from pipesched.profiles.measuring import yardstick_s

ROWS = {
    "start": commands.START_ROW,
    "engines": engines.ROW,
    "builders": builders.ROW,
    "sweeps": sweeps.ROW,
    "searches": commands.SEARCH_ROW,
    "large": commands.LARGE_ROW,
    "optimum": commands.OPTIMUM_ROW,
}


def section(name: str, row: Row) -> Iterator[str]:
    """Return the lines of a part of the page."""
    yardstick = f"yardstick {yardstick_s(1) * 1e3:.2f} ms"
    head = provenance(f"speed.py --rows {name}", os.getloadavg()[0], f"{yardstick}; {row.how}")
    return section_of(row.title, head, "", _lines(row))


def _lines(row: Row) -> Generator[str]:
    yield "| measure | goal | figure | reached |"
    yield "|---|---|---|---|"
    for figure in row.figures():
        yield figure.line()


def main() -> int:
    parser = arguments_of(__doc__)
    add_rows(parser, ROWS)
    arguments = parser.parse_args()
    if arguments.out and {*arguments.rows} == {*ROWS}:
        arguments.out.unlink(missing_ok=True)  # no part of another day is left
    for name in arguments.rows:
        show(section(name, ROWS[name]), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
