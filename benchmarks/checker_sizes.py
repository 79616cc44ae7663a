"""Check that the checker accepts every schedule of the catalogue at every size: all p and m up to a bound.

    python benchmarks/checker_sizes.py [--ranks 16] [--microbatches 64] [--out benchmarks/results/checker_sizes.md]

Sizes that a builder refuses (an odd number of ranks in two directions, ...) are counted separately. The tests check
some random sizes; this benchmark takes half an hour on two cores.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import CATALOGUE
from pipesched.schedules.check import find_faults
from pipesched.schedules.lowering import lower


@dataclass(frozen=True, slots=True)
class Row:
    """The sizes of one schedule: numbers of accepted and of impossible sizes, and the faults of the others."""

    name: str
    fine: int
    impossible: int
    faults: tuple[str, ...]


def look(name: str, ranks: int, microbatches: int) -> Row:
    """Build `name` at every size, with two stages per rank if it takes chunks; check it as built and lowered."""
    entry, fine, impossible = CATALOGUE[name], 0, 0
    faults: list[str] = []
    for p in range(1, ranks + 1):
        for m in range(1, microbatches + 1):
            try:
                schedule = entry.build(p, m, **({"num_chunks": 2} if entry.traits.takes_chunks else {}))
            except ScheduleError:
                impossible += 1
                continue
            findings = [*find_faults(schedule), *find_faults(lower(schedule))]
            faults += [f"p = {p}, m = {m}: {finding}" for finding in findings[:1]]
            fine += not findings
    return Row(name, fine, impossible, tuple(faults))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="also write the report here")
    arguments = parser.parse_args()
    started_s = time.monotonic()
    with ProcessPoolExecutor(arguments.processes) as pool:
        look_at = partial(look, ranks=arguments.ranks, microbatches=arguments.microbatches)
        rows = list(pool.map(look_at, CATALOGUE))
    command = f"python benchmarks/checker_sizes.py --ranks {arguments.ranks} --microbatches {arguments.microbatches}"
    took_s, fine = time.monotonic() - started_s, sum(row.fine for row in rows)
    lines = [
        "# Every schedule at every size",
        "",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {took_s:.0f} s.",
        "",
        f"{fine} of {fine + sum(len(row.faults) for row in rows)} are fine, bare and lowered.",
        "",
        "| schedule | fine | cannot be had | faults |",
        "|---|---:|---:|---|",
        *(f"| {row.name} | {row.fine} | {row.impossible} | {'; '.join(row.faults[:3]) or '-'} |" for row in rows),
    ]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
