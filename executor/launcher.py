"""Start the processes of a run on this machine, watch them, and bring back what they measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from executor.board import Board
from executor.errors import RankFailed, failed
from executor.job import START_S, STOP_SIGNALS, Job, job_to_json
from schedules.formats.schedule_json import from_json
from schedules.formats.timeline_json import read_timeline
from schedules.lower import lower
from schedules.op import Op
from schedules.schedule import Schedule
from schedules.timeline import Timeline

_GRACE_S = 5.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave.

    Attributes:
        timeline: The iteration of median makespan.
        makespans_s: Of every measured iteration.
        losses: Mean loss of every micro-batch, from the initial weights; empty when emulated.
    """

    timeline: Timeline
    makespans_s: tuple[float, ...]
    losses: tuple[float, ...]


def launch(job: Job, tick: Callable[[float], None] = lambda fraction: None) -> Measured:  # noqa: ARG005
    """Run `job` with one process per rank on this machine.

    Args:
        tick: Told now and then what fraction of all ops is done.

    Raises:
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
    """
    schedule = lower(from_json(job.schedule, "the job's schedule"))
    with tempfile.TemporaryDirectory(prefix="pipesched-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(job_to_json(job))
        with Board.create(folder / "board", schedule.num_ranks) as board:
            processes: list[subprocess.Popen[bytes]] = []
            try:
                _start_all(processes, schedule.num_ranks, folder, job)
                _watch(processes, schedule, board, folder, job, tick)
            finally:
                _end(processes)
        return _read_result(folder)


def _start_all(processes: list[subprocess.Popen[bytes]], num_ranks: int, folder: Path, job: Job) -> None:
    """Add one process per rank to `processes`; a signal meanwhile waits, or a child could be lost before it is known.

    The children inherit the blocked signals; `executor.__main__` unblocks them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        for rank in range(num_ranks):
            processes.append(_start(rank, num_ranks, folder, job))  # noqa: PERF401 -- each is known at once
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(rank: int, num_ranks: int, folder: Path, job: Job) -> subprocess.Popen[bytes]:
    environment = dict(
        os.environ,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(num_ranks),
        LOCAL_WORLD_SIZE=str(num_ranks),
        OMP_NUM_THREADS=str(job.threads),
        GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    )
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(Path.cwd())]))
    log = (folder / f"log{rank}").open("wb")
    with log:
        return subprocess.Popen(  # noqa: S603 -- our own interpreter and module
            [sys.executable, "-m", "executor", "--folder", str(folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _watch(
    processes: list[subprocess.Popen[bytes]],
    schedule: Schedule,
    board: Board,
    folder: Path,
    job: Job,
    tick: Callable[[float], None],
) -> None:
    total = (job.warmup + job.iterations) * sum(map(len, schedule.ops))
    patience_s = job.timeout_s + 2 * _GRACE_S
    seen, changed_at = -1, time.monotonic()
    while True:
        codes = [process.poll() for process in processes]
        if any(code not in (None, 0) for code in codes):
            raise _blame(processes, schedule, board, folder)
        if all(code == 0 for code in codes):
            return
        done = sum(max(0, board.read(rank)[1]) for rank in range(len(processes)))
        if done != seen:
            seen, changed_at = done, time.monotonic()
            tick(done / total)
        elif time.monotonic() - changed_at > (patience_s if done else max(START_S, patience_s)):
            raise RankFailed(f"no rank has moved for {time.monotonic() - changed_at:.0f} s: {_where(schedule, board)}")
        time.sleep(_POLL_S)


def _blame(processes: list[subprocess.Popen[bytes]], schedule: Schedule, board: Board, folder: Path) -> RankFailed:
    """Say which rank ended the run: one that was killed first of all, then one whose op failed by itself."""
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(_POLL_S)
    codes = [process.poll() for process in processes]
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            return RankFailed(
                str(failed(rank, _op_at(schedule, board, rank), f"the process was killed by signal {-code}"))
            )
    failures = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
    # a rank that only lost its peer says so in a file of its own; the culprit comes first
    rank = min(failures, key=lambda rank: ((folder / f"waited{rank}").exists(), rank))
    reason = _reason(folder, rank, codes[rank])
    running = [rank for rank, code in enumerate(codes) if code is None]
    if running and (folder / f"waited{rank}").exists():
        reason += f"; still at work: {_where(schedule, board, running)}"
    return RankFailed(reason)


def _op_at(schedule: Schedule, board: Board, rank: int) -> Op | None:
    index = board.read(rank)[0]
    return schedule.ops[rank][index] if 0 <= index < len(schedule.ops[rank]) else None


def _reason(folder: Path, rank: int, code: int | None) -> str:
    for kind in ("error", "waited"):
        if (folder / f"{kind}{rank}").exists():
            return (folder / f"{kind}{rank}").read_text()
    log = (folder / f"log{rank}").read_text(errors="replace").strip().splitlines()
    return f"rank {rank} ended with exit code {code}: {log[-1] if log else 'it said nothing'}"


def _where(schedule: Schedule, board: Board, ranks: Iterable[int] | None = None) -> str:
    everyone = range(schedule.num_ranks)
    return ", ".join(f"rank {rank} at {_op_at(schedule, board, rank) or 'its start'}" for rank in ranks or everyone)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def _read_result(folder: Path) -> Measured:
    from pydantic import TypeAdapter

    numbers = TypeAdapter(dict[str, tuple[float, ...]]).validate_json((folder / "result.json").read_text())
    return Measured(read_timeline(folder / "timeline.json"), numbers["makespans_s"], numbers["losses"])
