"""Runs that faults befall: their processes are known by a mark, and nothing of them may be left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

MARK = "PIPESCHED_FAULT_MARK"
"""A variable of the environment by which all processes of a run are known."""
KEPT = r"pipesched-standstill-|torchinductor_|torchelastic_"
"""Names of the report on a standstill, of the cache that torch makes where it is imported, and of torchrun's logs."""
POLL_S = 0.02
START_S = 90.0
PATIENCE_S = 15.0
"""How much longer than promised an end is awaited [s]."""


class Launcher(Protocol):
    """What a run is started by.

    Attributes:
        pids: Its processes; the ranks are so many generations below them.
        generations: How many.
        is_anothers: Whether it is not ours to say when it ends.
    """

    pids: Sequence[int]
    generations: int
    is_anothers: bool

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""

    def end(self) -> str:
        """End it, if it is not over, and return what it printed on stderr."""


Start = Callable[[Path, Mapping[str, str]], Launcher]
"""Starts a run in a folder, with these variables of the environment besides."""


class FaultyRun:
    """A run in a folder of its own, in which its temporary files are too."""

    def __init__(self, start: Start) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        temporary = Path(self._folder.name) / "tmp"
        temporary.mkdir()
        self.launcher = start(Path(self._folder.name), {MARK: self._mark, "TMPDIR": str(temporary)})
        self.fault_s: float | None = None

    def below(self, generations: int) -> list[int]:
        """Return the processes of the run that are so many generations below its launcher, the oldest first."""
        parents = {pid: _parent(pid) for pid in self.processes()}
        pids = list(self.launcher.pids)
        for _ in range(generations):
            pids = sorted(pid for pid, parent in parents.items() if parent in pids)
        return pids

    def ranks(self) -> list[int]:
        """Return the processes of the ranks."""
        return self.below(self.launcher.generations)

    def processes(self) -> list[int]:
        """Return the processes that carry the mark."""
        mark = f"{MARK}={self._mark}".encode()
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        pids.append(int(entry.name))
                except OSError:
                    continue
        return [pid for pid in pids if state_of(pid) not in ("", "Z", "X")]

    def await_ranks(self, num_ranks: int) -> None:
        """Wait until all ranks are there, or the launcher is not."""
        until_s = time.monotonic() + START_S
        while len(self.ranks()) < num_ranks and self.launcher.poll() is None and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def await_fault(self) -> None:
        """Wait until a rank is gone or stopped, or the launcher has ended; that is the time of the fault."""
        ranks = self.ranks()
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self.launcher.poll() is None:
            if any(state_of(pid) in ("", "Z", "X", "T") for pid in ranks):
                break
            time.sleep(POLL_S)
        self.fault_s = time.monotonic()

    def end(self, limit_s: float) -> tuple[float | None, int | None, str, list[str]]:
        """Wait for the end; return the seconds since the fault, the exit code, the message, and what is left."""
        assert self.fault_s is not None, "a fault was awaited"
        until_s = self.fault_s + limit_s + PATIENCE_S
        after_s = None
        while (is_on := self.launcher.poll() is None or bool(self.processes())) and time.monotonic() < until_s:
            if after_s is None and not self.ranks() and self.launcher.is_anothers:
                after_s = time.monotonic() - self.fault_s
            time.sleep(POLL_S)
        after_s = None if is_on else after_s or time.monotonic() - self.fault_s
        code = self.launcher.poll()
        pids = self.processes()
        left = [f"process {pid}" for pid in pids]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        errors = self.launcher.end()
        left += [path.name for path in (Path(self._folder.name) / "tmp").iterdir() if not re.match(KEPT, path.name)]
        self._folder.cleanup()
        return after_s, code, errors, left


def state_of(pid: int) -> str:
    """Return the state of a process, as /proc has it; empty if there is none."""
    return _stat(pid)[0]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> Sequence[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "", "0"


class Agents:
    """The agents of torchrun, one on each node, whose children are the ranks."""

    generations = 1
    is_anothers = True

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self.pids: Sequence[int] = [process.pid for process in processes]

    def poll(self) -> int | None:
        """Return the exit code of the first that failed, when all are over."""
        codes = [process.poll() for process in self._processes]
        return None if None in codes else next(filter(None, codes), 0)

    def end(self) -> str:
        """End them, and return what all printed on stderr."""
        for process in self._processes:
            process.kill()
        return "".join(process.communicate()[1] for process in self._processes)
