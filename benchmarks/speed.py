"""Speed of the tool beside its goals: engines, builders, sweeps, searches, whole processes.

    python benchmarks/speed.py [--rows engines,start] [--out benchmarks/results/speed.md]

Every group of rows is a part of the page, which is written as soon as it is measured. Engines take turns in one
process and are compared by its processor time; whole processes are timed by the clock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from report import arguments_of, provenance, show
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
    """Yield a part of the page."""
    begun_s = time.monotonic()
    yield f"# {row.title}"
    yield ""
    yardstick = f"yardstick {yardstick_s(1) * 1e3:.2f} ms"
    yield from provenance(f"speed.py --rows {name}", os.getloadavg()[0], f"{yardstick}; {row.how}")
    yield ""
    yield "| measure | goal | figure | reached |"
    yield "|---|---|---|---|"
    for figure in row.figures():
        yield figure.line()
    yield ""
    yield f"Took {time.monotonic() - begun_s:.0f} s."


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    arguments = parser.parse_args()
    names = arguments.rows.split(",")
    if unknown := set(names) - set(ROWS):
        parser.error(f"--rows: got {', '.join(unknown)}, expected some of {', '.join(ROWS)}")
    if arguments.out and set(names) == set(ROWS):
        arguments.out.unlink(missing_ok=True)  # no part of another day is left
    for name in names:
        show(section(name, ROWS[name]), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
