"""R7: the largest supported sizes: 512 ranks x 4096 micro-batches simulated, 64 ranks run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fault_rows.attempt import attempt
from fault_rows.row import Row, Section
from fault_rows.workers import load_torch

COMMANDS = (
    "run -s 1f1b -p 64 -m 64 --uniform f=1ms,b=2ms --iterations 1 --out x.json",
    "simulate -s 1f1b -p 512 -m 4096 --uniform f=1,b=2 --json",
    "simulate -s interleaved -p 512 -m 4096 -v 4 --uniform f=1,b=2 --json",
)
LIMIT_S = 200.0


def lines(count: int) -> Section:
    """Yield the section on the first `count` commands."""
    load_torch()
    yield "| command | exit code | seconds | most memory of the command | wrong |"
    yield "|---|---|---|---|---|"
    said = []
    for line in COMMANDS[:count]:
        with tempfile.TemporaryDirectory() as name:
            result = attempt(line.split(), Path(name), limit_s=LIMIT_S)
        yield (
            f"| `{line}` | {'-' if result.exit_code is None else result.exit_code} | {result.seconds:.1f} "
            f"| {result.peak_bytes / 2**20:.0f} MiB | {int(result.exit_code != 0)} |"
        )
        said += [f"- `{line}`: {result.errors[-300:]!a}"] if result.exit_code != 0 else []
    yield ""
    yield from said
    return not said


ROW = Row(
    title="R7: many ranks and micro-batches",
    goal=f"simulated and run on two cores, within {LIMIT_S:g} s each",
    count=len(COMMANDS),
    lines=lines,
)
