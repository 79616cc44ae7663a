"""The errors of predictions on real runs: every row is measured on this machine, whose drift is printed.

    python benchmarks/fidelity.py [--rows rest,fitted] [--rounds 8] [--out benchmarks/results/fidelity.md]

Rows: the unexplained rest of a replay; costs fitted on a run; the range of a makespan; costs from PyTorch's own traces;
the tuner's regret; emulated ranks under all schedules; clocks with a known shift. Every row is a part of the page,
which is written as soon as the row is done. A yardstick, a fixed kernel, is timed before every run: its change is the
drift of the machine. A failed run is reported, and the other runs continue.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from fidelity_rows import clocks, emulated, fitted, pytorch, regret, rest, spread
from fidelity_rows.bench import Row
from report import add_rows, arguments_of, or_error, provenance, section_of, show

import pipesched

ROWS = {
    "rest": rest.ROW,
    "fitted": fitted.ROW,
    "spread": spread.ROW,
    "pytorch": pytorch.ROW,
    "regret": regret.ROW,
    "emulated": emulated.ROW,
    "clocks": clocks.ROW,
}


def section(name: str, row: Row, rounds: int) -> Iterator[str]:
    """Return the lines of a part of the page; a row that fails has its error in its place."""
    command = f"fidelity.py --rows {name} --rounds {rounds}"
    head = provenance(command, os.getloadavg()[0], "gloo, 1 thread per rank")
    return section_of(row.title, head, row.goal, or_error(row.lines(rounds)))


def estimate(rounds: Mapping[str, int]) -> str:
    """Return the approximate time of the rows with `rounds` rounds; a row with another row's runs takes almost none."""
    minutes: dict[str, float] = {}
    made: set[object] = set()
    for name, count in rounds.items():
        row = ROWS[name]
        minutes[name] = 0.0 if (row.runs, count) in made else count * row.round_s / 60
        made |= {(row.runs, count)} if row.runs else set()
    row_minutes = ", ".join(f"{name} {taken:.0f}" for name, taken in minutes.items())
    return f"about {sum(minutes.values()):.0f} minutes on a quiet machine of two cores: {row_minutes}"


def main() -> int:
    parser = arguments_of(__doc__)
    add_rows(parser, ROWS)
    parser.add_argument("--rounds", type=int, help="of every row, in place of its own number")
    arguments = parser.parse_args()
    rounds = {name: arguments.rounds or ROWS[name].rounds for name in arguments.rows}
    print(estimate(rounds), file=sys.stderr, flush=True)
    with pipesched.session():
        for name in arguments.rows:
            show(section(name, ROWS[name], rounds[name]), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
