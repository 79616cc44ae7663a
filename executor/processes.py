"""The processes of a run on this machine, one per rank: started, watched, ended; and who is to blame if one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

from executor.board import Board
from executor.errors import RankFailed, failed
from executor.job import START_S, STOP_SIGNALS
from schedules.op import Op

_GRACE_S = 5.0
_POLL_S = 0.02


@final
class Processes:
    """Each runs ``python -m executor --folder FOLDER``, which holds the job.

    Args:
        folder: Of the job, and of what the processes write.
        num_ranks: Processes.
        op_at: Returns the op at a position of a rank's list; None behind its end.
        threads: CPU threads of each.
        timeout_s: How long one message may keep a rank waiting.
    """

    def __init__(
        self, folder: Path, num_ranks: int, op_at: Callable[[int, int], Op | None], *, threads: int, timeout_s: float
    ) -> None:
        self._folder = folder
        self._num_ranks = num_ranks
        self._find_op = op_at
        self._threads = threads
        self._timeout_s = timeout_s
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self, on_move: Callable[[int], None]) -> None:
        """Start all and wait until they are over; whatever happens, none is left.

        Args:
            on_move: Told now and then how many ops all ranks have begun; may raise to end the run.

        Raises:
            RankFailed: A rank failed, died or hung; with rank, op and micro-batch.
        """
        with Board.create(self._folder / "board", self._num_ranks) as self._board:
            try:
                self._start_all()
                self._watch(on_move)
            finally:
                self._end()

    def _start_all(self) -> None:
        """Start one process per rank; a signal meanwhile waits, or a child could be lost before it is known.

        The children inherit the blocked signals; `executor.__main__` unblocks them.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            for rank in range(self._num_ranks):
                self._processes.append(self._start(rank))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        environment = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(self._num_ranks),
            LOCAL_WORLD_SIZE=str(self._num_ranks),
            OMP_NUM_THREADS=str(self._threads),
            GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        )
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(Path.cwd())]))
        with (self._folder / f"log{rank}").open("wb") as log:
            return subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                [sys.executable, "-m", "executor", "--folder", str(self._folder)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _watch(self, on_move: Callable[[int], None]) -> None:
        patience_s = self._timeout_s + 2 * _GRACE_S
        seen, changed_at = -1, time.monotonic()
        while True:
            codes = [process.poll() for process in self._processes]
            if any(code not in (None, 0) for code in codes):
                raise self._blame()
            if all(code == 0 for code in codes):
                return
            done = sum(max(0, self._board.read(rank)[1]) for rank in range(self._num_ranks))
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
        codes = [process.poll() for process in self._processes]
        for rank, code in enumerate(codes):
            if code is not None and code < 0:
                return failed(rank, self._op_of(rank), f"the process was killed by signal {-code}")
        failures = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        # a rank that only lost its peer says so in a file of its own; the culprit comes first
        rank = min(failures, key=lambda rank: ((self._folder / f"waited{rank}").exists(), rank))
        reason = self._reason(rank)
        if reason is None:
            return failed(rank, self._op_of(rank), self._last_words(rank, codes[rank]))
        running = [rank for rank, code in enumerate(codes) if code is None]
        if running and (self._folder / f"waited{rank}").exists():
            where = self._where(running)
            reason += f"; still at work: {where}; where an op takes that long, try a longer timeout"
        return RankFailed(reason)

    def _op_of(self, rank: int) -> Op | None:
        index = self._board.read(rank)[0]
        return None if index < 0 else self._find_op(rank, index)

    def _reason(self, rank: int) -> str | None:
        """Return what the rank itself wrote down before it ended; None where it came to no such thing."""
        for kind in ("error", "waited"):
            if (self._folder / f"{kind}{rank}").exists():
                return (self._folder / f"{kind}{rank}").read_text()
        return None

    def _last_words(self, rank: int, code: int | None) -> str:
        log = (self._folder / f"log{rank}").read_text(errors="replace").strip().splitlines()
        return f"the process ended with exit code {code}" + (f": {log[-1]}" if log else "")

    def _where(self, ranks: Iterable[int] | None = None) -> str:
        everyone = range(self._num_ranks)
        return ", ".join(f"rank {rank} at {self._op_of(rank) or 'its start'}" for rank in ranks or everyone)

    def _end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
