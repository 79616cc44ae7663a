"""Runs with faults: their processes have a mark, and no process or file of a run may remain."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fault_rows.attempt import Command

MARK = "PIPESCHED_FAULT_MARK"
"""Environment variable that marks all processes of a run."""
TIMES, AT_WORK = "PIPESCHED_FAULT_TIMES", "PIPESCHED_FAULTS_AT_WORK"
"""Environment variables with the file in which faults write their times, and the folder in which ranks report work."""
KEPT = r"pipesched-standstill-|torchinductor_|torchelastic_"
"""Names of files that may remain: the report on a standstill, torch's cache, and torchrun's logs."""
POLL_S = 0.02
START_S = 90.0
PATIENCE_S = 15.0
"""Additional time to wait for the end of a run after the promised time [s]."""


class Launcher(Protocol):
    """The launcher of a run.

    Attributes:
        pids: Processes of the launcher.
        generations: Generations from these processes down to the ranks.
        is_anothers: Whether the launcher is not part of pipesched, so that its end has no guarantee.
    """

    pids: Sequence[int]
    generations: int
    is_anothers: bool

    def poll(self) -> int | None:
        """Return the exit code of the launcher, or None while it runs."""

    def said(self) -> Sequence[str]:
        """Return the text of each process on stderr so far."""

    def end(self) -> str:
        """End the launcher if it still runs; return its text on stderr."""


class Launched:
    """A command that launches ranks, or runs them itself.

    Args:
        command: The command.
        generations: Generations from the command down to the ranks.
    """

    is_anothers = False

    def __init__(self, command: Command, generations: int = 2) -> None:
        self._command, self.generations = command, generations
        self.pids: Sequence[int] = [command.pid]

    def poll(self) -> int | None:
        return self._command.poll()

    def said(self) -> Sequence[str]:
        return [self._command.said()]

    def end(self) -> str:
        return self._command.end()[1]


Start = Callable[[Path, Mapping[str, str]], Launcher]
"""A function that starts a run in a folder, with additional environment variables."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run.

    Attributes:
        named_s: Time from the fault to the required message [s]; None without this message.
        after_s: Time from the fault to the end of all processes but torchrun's agents [s]; None if not in time.
        exit_code: Exit code of the launcher.
        errors: Text of all processes on stderr.
        left: Remaining processes and files.
    """

    named_s: float | None
    after_s: float | None
    exit_code: int | None
    errors: str
    left: Sequence[str]


class FaultyRun:
    """A run in a folder of its own, which also has its temporary files."""

    def __init__(self, start: Start) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        folder = Path(self._folder.name)
        temporary, self._at_work, self._times = folder / "tmp", folder / "work", folder / "times"
        temporary.mkdir()
        self._at_work.mkdir()
        given = {MARK: self._mark, "TMPDIR": str(temporary), TIMES: str(self._times), AT_WORK: str(self._at_work)}
        self.launcher = start(folder, given)
        self.fault_s: float | None = None

    def below(self, generations: int) -> list[int]:
        """Return the processes of the run that are `generations` generations below its launcher, in order."""
        parents = {pid: _parent(pid) for pid in self.processes()}
        pids = list(self.launcher.pids)
        for _ in range(generations):
            pids = [pid for above in pids for pid in sorted(pid for pid, parent in parents.items() if parent == above)]
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
        """Wait until all ranks have started, or the launcher has ended."""
        self._await(lambda: len(self.ranks()) >= num_ranks)

    def await_watches(self, num_ranks: int) -> None:
        """Wait until each rank is watched under torchrun, so that it handles SIGTERM, or the launcher has ended."""
        self._await(lambda: sum(map(_handles_sigterm, self.ranks())) >= num_ranks)

    def await_work(self, num_ranks: int) -> None:
        """Wait until `num_ranks` ranks work, or the launcher has ended."""
        self._await(lambda: len([*self._at_work.iterdir()]) >= num_ranks)

    def _await(self, is_there: Callable[[], bool]) -> None:
        until_s = time.monotonic() + START_S
        while not is_there() and self.launcher.poll() is None and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def await_fault(self) -> None:
        """Wait for the fault of a rank: it is recorded, a rank is gone or stopped, or the launcher has ended."""
        ranks = self.ranks()
        self._await(lambda: bool(self._noted()) or any(state_of(pid) in ("", "Z", "X", "T") for pid in ranks))
        self.fault_s = time.monotonic()

    def _noted(self) -> list[float]:
        """Return the recorded times of faults, by the monotonic clock [s], without an unfinished record."""
        whole = self._times.read_text().rpartition("\n")[0] if self._times.exists() else ""
        return [int(line) / 1e9 for line in whole.splitlines()]

    def end(self, limit_s: float, told: str) -> End:
        """Wait for the end.

        Args:
            limit_s: Least time to wait after the fault [s].
            told: Pattern of the required message.
        """
        assert self.fault_s is not None, "a fault was awaited"
        self.fault_s = min(self._noted(), default=self.fault_s)
        until_s = self.fault_s + limit_s + PATIENCE_S
        after_s, named_s = None, None
        while is_on := self.launcher.poll() is None or bool(self.processes()):
            if time.monotonic() > until_s:
                break
            if named_s is None and any(re.search(told, said) for said in self.launcher.said()):
                named_s = time.monotonic() - self.fault_s
            if after_s is None and self.launcher.is_anothers and not self.processes():
                after_s = time.monotonic() - self.fault_s
            time.sleep(POLL_S)
        over_s = time.monotonic() - self.fault_s
        if named_s is None and any(re.search(told, said) for said in self.launcher.said()):
            named_s = over_s
        after_s = None if is_on else after_s or over_s
        code = self.launcher.poll()
        pids = self.processes()
        left = [f"process {pid}" for pid in pids]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        errors = self.launcher.end()
        left += [path.name for path in (Path(self._folder.name) / "tmp").iterdir() if not re.match(KEPT, path.name)]
        self._folder.cleanup()
        return End(named_s, after_s, code, errors, left)


def state_of(pid: int) -> str:
    """Return the state of a process in /proc, or an empty text without such a process."""
    return _stat(pid)[0]


def _handles_sigterm(pid: int) -> bool:
    try:
        caught = re.search(r"^SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> Sequence[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "", "0"
