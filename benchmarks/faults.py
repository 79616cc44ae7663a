"""What happens when files, command lines, ranks and people do what they should not: counted, against what is promised.

    python benchmarks/faults.py [--rows files,ranks] [--share 0.1] [--out benchmarks/results/faults.md]

Every row is a part of the page, which is written as soon as the row is done. `make faults` runs all of them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

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
from fault_rows.row import Row
from report import arguments_of, provenance, show

NICENESS = 19
ROWS = {
    "files": damaged_input.ROW,
    "schedules": mutated_schedules.ROW,
    "ranks": rank_faults.ROW,
    "training": training_kills.ROW,
    "restarts": restarted_trainings.ROW,
    "checkpoints": checkpoint_cost.ROW,
    "outputs": same_outputs.ROW,
    "hostile": hostile_files.ROW,
    "interrupts": interrupts.ROW,
    "limits": limits.ROW,
    "steps": many_steps.ROW,
}


def section(name: str, row: Row, share: float) -> Iterator[str]:
    """Yield a part of the page."""
    begun_s = time.monotonic()
    count = max(1, round(row.count * share))
    yield f"# {row.title}"
    yield ""
    yield from provenance(f"faults.py --rows {name} --share {share:g}", os.getloadavg()[0], f"{count} faults")
    yield f"Goal: {row.goal}."
    yield ""
    yield from row.lines(count)
    yield ""
    yield f"Took {time.monotonic() - begun_s:.0f} s."


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--share", type=float, default=1.0, help="of the faults of every row")
    arguments = parser.parse_args()
    names = arguments.rows.split(",")
    if unknown := set(names) - set(ROWS):
        parser.error(f"--rows: got {', '.join(unknown)}, expected some of {', '.join(ROWS)}")
    waiting = [name for name in names if ROWS[name].is_beside]
    begun = {name: _begin(name, arguments.share) for name in waiting}
    for name in names:
        if name not in begun:
            show(section(name, ROWS[name], arguments.share), arguments.out)
    for name, (pid, page) in begun.items():
        os.waitpid(pid, 0)
        with os.fdopen(page) as file:
            file.seek(0)
            show(file.read().splitlines() or [f"# {ROWS[name].title}", "", "It failed."], arguments.out)
    return 0


def _begin(name: str, share: float) -> tuple[int, int]:
    """Begin a row in a process that takes what others leave of the machine; return it and the file of its section."""
    page = os.memfd_create(name)
    pid = os.fork()
    if pid:
        return pid, page
    try:
        os.nice(NICENESS)
        with os.fdopen(page, "w") as file:
            file.write("\n".join(section(name, ROWS[name], share)))
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
