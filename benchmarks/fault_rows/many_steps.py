"""R7: the memory of a training of a million steps must not grow."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fault_rows.attempt import Command
from fault_rows.row import Row, Section
from fault_rows.workers import load_torch

COMMAND = "train mlp:layers=2,width=2 -s 1f1b -p 2 -m 1 --batch-size 1 --optimizer sgd --uniform f=1ms,b=2ms"
POLL_S = 0.5
LARGEST_GROWTH = 0.1
"""Largest growth of the memory from a tenth of the time to the end, as a share."""


def lines(count: int) -> Section:
    """Yield the section on `count` steps."""
    load_torch()
    held: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        command = Command([*COMMAND.split(), "--steps", str(count)], Path(name))
        while command.poll(POLL_S) is None:
            held.append(_resident_bytes(command.pid))
        _, errors = command.end()
    held = [size for size in held if size] or [0]
    early, late = held[len(held) // 10], max(held[len(held) // 10 :])
    is_kept = command.code == 0 and late <= (1 + LARGEST_GROWTH) * early
    yield f"`{COMMAND} --steps {count}`,"
    yield "with what the other rows leave of the machine."
    yield f"Exit code {command.code} after {command.seconds:.0f} s. It held {early / 2**20:.0f} MiB after a tenth"
    yield f"of the time, and {late / 2**20:.0f} MiB at most from then on ({(late - early) / count:.0f} bytes a step)."
    yield ""
    yield f"As promised: {int(is_kept)} of 1." + (f" It said {errors[-300:]!a}." if command.code else "")
    return is_kept


def _resident_bytes(pid: int) -> int:
    try:
        words = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()
    except OSError:
        return 0
    return int(words[0]) * 1024 if words else 0


ROW = Row(
    title="R7: a million steps",
    goal="a training whose memory does not grow by more than a tenth",
    count=1_000_000,
    lines=lines,
    is_beside=True,
)
