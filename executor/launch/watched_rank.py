"""A rank under torchrun: the main thread's side of its watch (`rank_watch`)."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pipesched.executor import STOP_SIGNALS, ExecutionError, PeerLost, waiting_for
from pipesched.executor.launch.early_drain import DrainPage
from pipesched.executor.launch.progress_page import ProgressPage
from pipesched.executor.launch.rank_watch import FAILED, LOST_S, RankWatch, WatchedRank
from pipesched.executor.launch.run_board import RunBoard
from pipesched.executor.launch.siblings import ProcessFiles
from pipesched.executor.launch.standstill import stacks_written_to
from pipesched.profiles import ProfileError
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shortened

_LONGEST = 1000
"""Longest reason of a failure of user code that other nodes print, in characters; this node prints all of it."""
_SLACK_S = 5.0
"""Time that a rank which has lost a peer leaves its watch to end the process [s]."""


def is_under_agent() -> bool:
    """Return whether an agent of torchrun has started this process, on a system where it can be watched."""
    return "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux"


@contextmanager
def watched() -> Iterator[WatchedRank]:
    """Watch the rank of this process inside the block; the environment has its numbers, as torchrun sets them.

    If the run fails, the watch prints the cause and ends this process.

    Raises:
        PeerLost: Torchrun's store is gone.
    """
    process, local = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))
    first = process - local
    with ExitStack() as stack:
        page, stacks, drain = (_memory_file(name, stack) for name in ("page", "stacks", "drain"))
        progress_page = ProgressPage.create(_path(page), 1)
        rank = WatchedRank(progress_page, DrainPage.create(_path(drain), 1), progress_page.writer(0))
        stack.enter_context(stacks_written_to(stacks))
        with waiting_for("torchrun's store"):
            board = RunBoard(process)
            siblings = range(first, first + int(os.environ["LOCAL_WORLD_SIZE"]))
            watch = RankWatch(rank, board, process, siblings, ProcessFiles(os.getpid(), page, stacks))
        try:
            with _watching(watch):
                try:
                    yield rank
                except PeerLost as error:
                    rank.lost = str(error)
                    time.sleep(LOST_S + _SLACK_S)  # the watch ends this process sooner
                    raise
        except (Exception, SystemExit) as error:
            is_one_line = isinstance(error, ExecutionError | ProfileError | ScheduleError)
            failing = f"process {process}" if rank.run is None else f"rank {rank.run.ranks[process]}"
            reason = f"{failing} failed: " + shortened(f"{type(error).__name__}: {error}", _LONGEST)
            with suppress(RuntimeError):
                board.decide(str(error) if is_one_line else reason)
            raise
        finally:
            rank.page.host_row(0).end()


@contextmanager
def _watching(watch: RankWatch) -> Iterator[None]:
    """Run the watch in a thread inside the block; the signals that end a run wake it."""
    bell, ring = socket.socketpair()
    ring.setblocking(False)
    before = signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
    # a signal wakes the thread only if it has a handler
    handlers = {number: signal.signal(number, lambda *_: None) for number in STOP_SIGNALS}
    thread = threading.Thread(target=_watch, args=(watch, bell), name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        ring.shutdown(socket.SHUT_WR)  # ends the thread, even if a forked child holds the socket
        thread.join()
        ring.close()
        bell.close()


def _watch(watch: RankWatch, bell: socket.socket) -> None:
    """Run the watch; end this process if the watch fails, as it would no longer end on a signal."""
    try:
        watch.watch(bell)
    except Exception:  # noqa: BLE001 -- whatever it is, nobody watches this rank any more
        traceback.print_exc()
        os._exit(FAILED)


def _memory_file(name: str, stack: ExitStack) -> int:
    """Return the descriptor of a file in memory, which the stack closes; other processes open it by its number."""
    descriptor = os.memfd_create(f"pipesched-{name}")
    stack.callback(os.close, descriptor)
    return descriptor


def _path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")
