"""Count the violations of the guarantees for damaged files, command lines, failing ranks and interrupts.

    python benchmarks/faults.py [--rows files,ranks] [--share 0.1] [--out benchmarks/results/faults.md]

Every row is a part of the page, which is written as soon as the row is done. `make faults` runs all of them. The exit
code is 1 if a guarantee was violated.
"""

from __future__ import annotations

import os
import sys

from fault_rows import (
    checkpoint_cost,
    damaged_input,
    hostile_files,
    interrupts,
    limits,
    many_steps,
    mutated_schedules,
    rank_faults,
    restarted_trainings,
    same_outputs,
    training_kills,
)
from fault_rows.row import Row, Section
from report import add_rows, arguments_of, provenance, section_of, show

NICENESS = 19
ROWS = {
    "files": damaged_input.ROW,
    "schedules": mutated_schedules.ROW,
    "ranks": rank_faults.ROW,
    "torchrun": rank_faults.TORCHRUN,
    "training": training_kills.ROW,
    "restarts": restarted_trainings.ROW,
    "checkpoints": checkpoint_cost.ROW,
    "outputs": same_outputs.ROW,
    "hostile": hostile_files.ROW,
    "interrupts": interrupts.ROW,
    "limits": limits.ROW,
    "steps": many_steps.ROW,
}


def section(name: str, row: Row, share: float) -> Section:
    """Return the lines of a part of the page; they return whether all guarantees held."""
    count = max(1, round(row.count * share))
    head = provenance(f"faults.py --rows {name} --share {share:g}", os.getloadavg()[0], f"{count} faults")
    return section_of(row.title, head, row.goal, row.lines(count))


class Told:
    """The lines of a section; after the last line `is_kept` is whether all guarantees held."""

    def __init__(self, lines: Section) -> None:
        self._lines, self.is_kept = lines, False

    def __iter__(self) -> Section:
        self.is_kept = yield from self._lines
        return self.is_kept


def main() -> int:
    parser = arguments_of(__doc__)
    add_rows(parser, ROWS)
    parser.add_argument("--share", type=float, default=1.0, help="of the faults of every row")
    arguments = parser.parse_args()
    waiting = [name for name in arguments.rows if ROWS[name].is_beside]
    begun = {name: _begin(name, arguments.share) for name in waiting}
    broken = []
    for name in arguments.rows:
        if name not in begun:
            told = Told(section(name, ROWS[name], arguments.share))
            show(told, arguments.out)
            broken += [] if told.is_kept else [name]
    for name, (pid, page) in begun.items():
        broken += [name] if os.waitpid(pid, 0)[1] else []
        with os.fdopen(page) as file:
            file.seek(0)
            show(file.read().splitlines() or [f"# {ROWS[name].title}", "", "It failed."], arguments.out)
    if broken:
        print(f"faults: {', '.join(broken)}: not as promised", file=sys.stderr)
    return int(bool(broken))


def _begin(name: str, share: float) -> tuple[int, int]:
    """Start a row in a process of low priority; return the process id and the descriptor of the section's file."""
    page = os.memfd_create(name)
    pid = os.fork()
    if pid:
        return pid, page
    code = 1
    try:
        os.nice(NICENESS)
        told = Told(section(name, ROWS[name], share))
        with os.fdopen(page, "w") as file:
            file.write("\n".join(told))
        code = int(not told.is_kept)
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
