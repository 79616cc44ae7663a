"""The supervisor starts one process per rank on this machine, watches them, ends them, and names the first that failed.

Processes are numbered by device, as torchrun would do; ranks are named where something is told.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

from pipesched.executor import START_S, STOP_SIGNALS, ExecutionError, RankFailed, failed
from pipesched.executor.launch.affinity import ranks_of_processes
from pipesched.executor.launch.fork_client import Forked, fork
from pipesched.executor.launch.progress_page import ProgressPage
from pipesched.profiles import DeviceKind
from pipesched.profiles.processes import can_fork, environment, num_cores
from pipesched.schedules import Op

_GRACE_S = 5.0
_POLL_S = 0.02
_MOST_PER_CORE = 32
"""Processes; each takes some 200 MB before it does anything."""


@contextmanager
def started(
    num_processes: int, module: str, arguments: Sequence[str], folder: Path, *, threads: int = 1, is_fresh: bool = False
) -> Iterator[list[Forked]]:
    """Start processes of a module, numbered as torchrun does; whatever happens, none is left.

    A signal meanwhile waits, or a child could be lost before it is known.

    Args:
        folder: Gets what each process writes, in ``log0`` and so on.
        threads: CPU threads of each.
        is_fresh: Whether none may be forked.
    """
    count, processes = str(num_processes), list[Forked]()
    given = environment() | {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "OMP_NUM_THREADS": str(threads)}
    given.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            for number in range(num_processes):
                variables = given | {"RANK": str(number), "LOCAL_RANK": str(number)}
                processes.append(fork(arguments, variables, folder / f"log{number}", module=module, is_fresh=is_fresh))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
        for process in processes:
            process.wait()


@final
class Processes:
    """Each runs ``python -P -m pipesched.executor --folder FOLDER``, which holds the job.

    Args:
        folder: Folder of the job, and of what the processes write.
        rank_to_device: The device of every rank.
        op_at: Returns the op at a position of a rank's list; None behind its end.
        threads: CPU threads of each.
        timeout_s: How long one message may keep a rank waiting.
        device: What the ranks compute on.

    Raises:
        ExecutionError: More than this machine can be expected to run.
    """

    def __init__(
        self,
        folder: Path,
        rank_to_device: Sequence[int],
        op_at: Callable[[int, int], Op | None],
        *,
        threads: int,
        timeout_s: float,
        device: DeviceKind = "cpu",
    ) -> None:
        _require_few(len(rank_to_device))
        self._folder = folder
        self._ranks = ranks_of_processes(rank_to_device)
        self._find_op = op_at
        self._threads = threads
        self._is_fresh = not can_fork() or device != "cpu"  # CUDA does not outlive a fork, if something has touched it
        self._timeout_s = timeout_s
        self._processes: list[Forked] = []

    def run(self, on_move: Callable[[int], None]) -> None:
        """Start all and wait until they are over; whatever happens, none is left.

        Args:
            on_move: Told now and then how many ops all ranks have begun; may raise to end the run.

        Raises:
            RankFailed: A rank failed, died or hung; with rank, op and micro-batch.
        """
        with (
            ProgressPage.create(self._folder / "progress", len(self._ranks)) as self._progress_page,
            started(
                len(self._ranks),
                "pipesched.executor.__main__",
                ["--folder", str(self._folder.absolute())],
                self._folder,
                threads=self._threads,
                is_fresh=self._is_fresh,
            ) as self._processes,
        ):
            self._watch(on_move)

    def _watch(self, on_move: Callable[[int], None]) -> None:
        patience_s = self._timeout_s + 2 * _GRACE_S
        seen, changed_at = -1, time.monotonic()
        while True:
            codes = [process.poll() for process in self._processes]
            if any(code not in (None, 0) for code in codes):
                raise self._blame()
            if all(code == 0 for code in codes):
                return
            done = sum(max(0, self._progress_page.read(number)[1]) for number in range(len(self._ranks)))
            if done != seen:
                seen, changed_at = done, time.monotonic()
                on_move(done)
            elif time.monotonic() - changed_at > (patience_s if done else max(START_S, patience_s)):
                raise RankFailed(
                    f"no rank has moved for {time.monotonic() - changed_at:.0f} s: {self._where()}; "
                    "where an op takes that long, try a longer timeout"
                )
            time.sleep(_POLL_S)

    def _blame(self) -> RankFailed:
        """Say which rank ended the run: one that was killed first of all, then one whose op failed by itself."""
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(_POLL_S)
        for process in self._processes:
            if process.servers_end is not None:
                return RankFailed(f"the process that all ranks are forked from {process.servers_end}, and they with it")
        codes = [process.poll() for process in self._processes]
        for number, code in enumerate(codes):
            if code is not None and code < 0:
                return failed(self._ranks[number], self._op_of(number), f"the process was killed by signal {-code}")
        failures = [number for number, code in enumerate(codes) if code not in (None, 0)]
        # a rank that only lost its peer says so in a file of its own; the culprit comes first
        number = min(failures, key=lambda number: ((self._folder / f"waited{number}").exists(), number))
        reason = self._reason(number)
        if reason is None:
            return failed(self._ranks[number], self._op_of(number), self._last_words(number, codes[number]))
        running = [number for number, code in enumerate(codes) if code is None]
        if running and (self._folder / f"waited{number}").exists():
            where = self._where(running)
            reason += f"; still at work: {where}; where an op takes that long, try a longer timeout"
        return RankFailed(reason)

    def _op_of(self, number: int) -> Op | None:
        index = self._progress_page.read(number)[0]
        return None if index < 0 else self._find_op(self._ranks[number], index)

    def _reason(self, number: int) -> str | None:
        """Return what the process itself wrote down before it ended; None where it came to no such thing."""
        for kind in ("error", "waited"):
            if (self._folder / f"{kind}{number}").exists():
                return (self._folder / f"{kind}{number}").read_text()
        return None

    def _last_words(self, number: int, code: int | None) -> str:
        log = (self._folder / f"log{number}").read_text(errors="replace").strip().splitlines()
        return f"the process ended with exit code {code}" + (f": {log[-1]}" if log else "")

    def _where(self, numbers: Iterable[int] | None = None) -> str:
        everyone = range(len(self._ranks))
        return ", ".join(
            f"rank {self._ranks[number]} at {self._op_of(number) or 'its start'}" for number in numbers or everyone
        )


def _require_few(num_processes: int) -> None:
    cores = num_cores()
    if num_processes > _MOST_PER_CORE * cores:
        raise ExecutionError(
            f"ranks: got {num_processes}, a process each, expected at most {_MOST_PER_CORE * cores} on this machine of "
            f"{cores} cores; use fewer ranks, or torchrun on several machines"
        )
