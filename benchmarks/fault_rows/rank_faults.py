"""R3: ranks, launchers and the process they are forked from, killed, stopped or failing at random ops."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fault_rows.row import Row

NUM_RANKS = 4
NUM_MICROBATCHES = 8
TIMEOUT_S = 3.0
GONE_S = 2.0
"""All must be gone so soon after a death; of a rank that stands still, so soon after the time-out [s]."""
MARK = "PIPESCHED_FAULT_MARK"
"""A variable of the environment by which all processes of a run are known."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- looked at, not written to
RANK_FAILED = 3
"""Exit code."""
POLL_S = 0.02
START_S = 30.0
SHOWN = 12
SEED = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fault: how soon all was over [s] (None: not in time), and what was wrong, if anything."""

    after_s: float | None
    wrong: str


def lines(count: int) -> Iterator[str]:
    """Yield the section, of so many faults."""
    chance = random.Random(SEED)
    ops = _ops()
    kinds = [*INJECTED, *FROM_OUTSIDE]
    outcomes: dict[str, list[Outcome]] = {kind: [] for kind in kinds}
    for index in range(count):
        kind = kinds[index % len(kinds)]
        how = INJECTED.get(kind)
        outcomes[kind].append(_injected(kind, how, ops, chance) if how else _from_outside(kind, chance))
    yield f"`run` of 1F1B, {NUM_RANKS} ranks, {NUM_MICROBATCHES} micro-batches, gloo, --timeout {TIMEOUT_S:g}. Seconds"
    yield "are from the fault, as /proc shows it, until no process of the run is left."
    yield ""
    yield "| fault | times | as promised | over after, median | at most |"
    yield "|---|---|---|---|---|"
    for kind, results in outcomes.items():
        seconds = sorted(result.after_s for result in results if result.after_s is not None)
        cells = (f"{seconds[len(seconds) // 2]:.2f} s | {seconds[-1]:.2f} s") if seconds else "- | -"
        yield f"| {kind} | {len(results)} | {sum(not result.wrong for result in results)} | {cells} |"
    yield ""
    wrong = [f"- {kind}: {result.wrong}" for kind, results in outcomes.items() for result in results if result.wrong]
    yield f"As promised: {count - len(wrong)} of {count}."
    yield from wrong[:SHOWN]


INJECTED: Mapping[str, str] = {
    "kill": "was killed by signal 9",
    "raise": "a fault was injected here",
    "exit": "ended with exit code 0",
    "nan": "got NaN",
    "stop": "stopped by a signal",
}
"""Faults of --inject, and what the message must say of each."""


def _injected(kind: str, told: str, ops: Sequence[Sequence[str]], chance: random.Random) -> Outcome:
    rank = chance.randrange(NUM_RANKS)
    # a forward of the last stage gives no tensor
    choice = [op for op in ops[rank] if kind != "nan" or re.fullmatch(rf"\d+B\d+|[0-{NUM_RANKS - 2}]F\d+", op)]
    op = chance.choice(choice)
    run = _Run([f"--inject={kind}:rank={rank},op={op}", *(["--check-finite"] if kind == "nan" else [])])
    run.await_ranks()
    run.await_fault()
    limit_s = GONE_S + (TIMEOUT_S if kind == "stop" else 0)
    after_s, code, errors, left = run.end(limit_s)
    asked = f"{kind}:rank={rank},op={op}"
    if code != 3:
        return Outcome(after_s, f"{asked}: exit code {code}: {errors!a}")
    if not re.match(rf"pipesched: rank {rank} failed at {op}[ :]", errors) or told not in errors:
        return Outcome(after_s, f"{asked}: said {errors[:200]!a}")
    return Outcome(after_s, _leftovers(asked, after_s, left, limit_s))


def _from_outside(kind: str, chance: random.Random) -> Outcome:
    run = _Run(["--iterations", "100000"])
    run.await_ranks()
    time.sleep(chance.uniform(0, 1))
    FROM_OUTSIDE[kind](run)
    run.fault_s = time.monotonic()
    after_s, code, errors, left = run.end(GONE_S)
    expected = EXIT_CODES.get(kind, RANK_FAILED)
    if code != expected:
        return Outcome(after_s, f"{kind}: exit code {code}, not {expected}: {errors[:200]!a}")
    return Outcome(after_s, _leftovers(kind, after_s, left, GONE_S))


def _leftovers(what: str, after_s: float | None, left: Sequence[str], limit_s: float) -> str:
    if after_s is None or after_s > limit_s:
        return f"{what}: not over {limit_s:g} s after the fault" + (f" ({after_s:.1f} s)" if after_s else "")
    return f"{what}: left {', '.join(left)}" if left else ""


class _Run:
    """A run in a folder for its temporary files, whose processes carry a mark."""

    def __init__(self, options: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._shared = set(SHARED_MEMORY.iterdir())
        command = ["run", "-s", "1f1b", "-p", NUM_RANKS, "-m", NUM_MICROBATCHES, "--timeout", TIMEOUT_S]
        command += ["--model", "mlp:layers=8,width=16", "--out", Path(self._folder.name) / "run.json", *options]
        temporary = Path(self._folder.name) / "tmp"
        temporary.mkdir()
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "pipesched", *map(str, command)],
            env=os.environ | {MARK: self._mark, "TMPDIR": str(temporary)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.fault_s: float | None = None

    def processes(self) -> dict[int, str]:
        """Return the processes that carry the mark, with their states."""
        states = {}
        mark = f"{MARK}={self._mark}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state == "Z" or mark in (entry / "environ").read_bytes().split(b"\0"):
                        states[int(entry.name)] = state
                except OSError:
                    continue
        return states

    def ranks(self) -> list[int]:
        """Return the processes of the ranks: those that no other was started by."""
        marked = [pid for pid, state in self.processes().items() if state != "Z"]
        parents = {pid: _parent(pid) for pid in marked}
        return [pid for pid in marked if pid not in parents.values() and pid != self.launcher.pid]

    def server(self) -> int | None:
        """Return the process that the ranks are forked from."""
        return next((_parent(pid) for pid in self.ranks()), None)

    def await_ranks(self) -> None:
        """Wait until all ranks are there, or the launcher is not."""
        until_s = time.monotonic() + START_S
        while len(self.ranks()) < NUM_RANKS and self.launcher.poll() is None and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def await_fault(self) -> None:
        """Wait until a rank is gone or stopped, or the launcher has ended; that is the time of the fault."""
        ranks = self.ranks()
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self.launcher.poll() is None:
            if any(_state(pid) in ("", "Z", "X", "T") for pid in ranks):
                break
            time.sleep(POLL_S)
        self.fault_s = time.monotonic()

    def end(self, limit_s: float) -> tuple[float | None, int | None, str, list[str]]:
        """Wait for the end; return the seconds since the fault, the exit code, the message, and what is left."""
        assert self.fault_s is not None, "a fault was awaited"
        until_s = self.fault_s + limit_s + 10
        while time.monotonic() < until_s and (self.launcher.poll() is None or self._marked()):
            time.sleep(POLL_S)
        after_s = time.monotonic() - self.fault_s if time.monotonic() < until_s else None
        code = self.launcher.poll()
        left = [f"process {pid}" for pid in self._marked()]
        for pid in [*self._marked(), *([self.launcher.pid] if code is None else [])]:
            os.kill(pid, signal.SIGKILL)
        _, errors = self.launcher.communicate()
        new_shared = set(SHARED_MEMORY.iterdir()) - self._shared
        left += map(str, new_shared)
        files = [path for path in Path(self._folder.name).rglob("*") if path.is_file()]
        left += [path.name for path in files if "standstill" not in path.name]
        self._folder.cleanup()
        return after_s, code, "\n".join(line for line in errors.splitlines() if "failed" in line) or errors, left

    def _marked(self) -> list[int]:
        return [pid for pid, state in self.processes().items() if state not in ("Z", "X") and pid != os.getpid()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _ops() -> list[list[str]]:
    """Return every rank's ops by name, as the catalogue's file says them."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "lists.json"
        command = ["show", "-s", "1f1b", "-p", str(NUM_RANKS), "-m", str(NUM_MICROBATCHES), "--out", str(out)]
        subprocess.run([sys.executable, "-m", "pipesched", *command], check=True, capture_output=True)
        ops: list[list[str]] = json.loads(out.read_text())["ops"]
        return ops


def _kill(pid: int | None, what: int) -> None:
    if pid:
        os.kill(pid, what)


FROM_OUTSIDE: Mapping[str, Callable[[_Run], None]] = {
    "SIGKILL to a rank": lambda run: _kill(next(iter(run.ranks()), None), signal.SIGKILL),
    "SIGINT to the launcher": lambda run: _kill(run.launcher.pid, signal.SIGINT),
    "SIGTERM to the launcher": lambda run: _kill(run.launcher.pid, signal.SIGTERM),
    "SIGKILL to the launcher": lambda run: _kill(run.launcher.pid, signal.SIGKILL),
    "death of what ranks are forked from": lambda run: _kill(run.server(), signal.SIGKILL),
}
"""What is done to a run that would go on for long."""
EXIT_CODES = {"SIGINT to the launcher": 130, "SIGTERM to the launcher": 130, "SIGKILL to the launcher": -9}


ROW = Row(
    title="R3: ranks and launchers that fail",
    goal="the right rank and op named; over 2 s after a death, 2 s after the time-out of a standstill; nothing left",
    count=200,
    lines=lines,
)
