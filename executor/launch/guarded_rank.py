"""A rank under torchrun, and its messages to and from its guard (`rank_guard`)."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import final

from pipesched.executor import STOP_SIGNALS, ExecutionError, PeerLost
from pipesched.executor.launch.early_drain import DrainPage, Gate, LeaveRequest
from pipesched.executor.launch.progress_page import ProgressPage
from pipesched.executor.launch.rank_guard import (
    FAILED,
    LEFT,
    LOST,
    MESSAGE_BYTES,
    TOLD,
    VERDICT_S,
    Guarded,
    be_guard,
    heard,
)
from pipesched.executor.launch.standstill_report import stacks_written_to
from pipesched.executor.launch.start_watch import start_is_over
from pipesched.profiles import ProfileError
from pipesched.profiles.processes import end_with
from pipesched.schedules import Op, ScheduleError, shortened

_FAILED = 3
"""The exit code of a rank that has failed."""
_LONGEST = 1000
"""Longest reason of a failure of user code that other nodes print, in characters; this node prints all of it."""
_SLACK_S = _LEAVING_S = 1.0
"""How much longer than it may take a verdict is awaited, and how long a guard may take to end [s]."""


@final
class GuardedRank:
    """The only rank of this process; it ends with torchrun's agent.

    Args:
        timeout_s: Longest wait of a rank for one message.
    """

    def __init__(self, timeout_s: float) -> None:
        self._agent = os.getppid()
        end_with(self._agent)
        self._timeout_s = timeout_s
        self._page = ProgressPage.of_one()
        self.at: Callable[[int, Op], None] = self._page.writer(0)
        """Notes the op that this rank is at, and its position."""
        self.device = self._page.device_row(0)
        """Where the position of the rank's GPU is noted."""
        self._drain_page = DrainPage.of_one()
        self._is_done = False

    def gate(self, is_asked: Callable[[], bool]) -> Gate:
        """Return the gate that ends lists early.

        Args:
            is_asked: Returns whether this rank is asked to leave.
        """
        return self._drain_page.gate(0, is_asked)

    def done(self) -> None:
        """Note that the list is over: the end of the rank no longer ends the run."""
        self._is_done = True

    @contextmanager
    def guarded(
        self,
        rank: int,
        num_ranks: int,
        ops_of: Callable[[int], Iterable[Op]],
        *,
        is_on_cpus: bool,
        request: LeaveRequest | None = None,
    ) -> Iterator[None]:
        """Fork a guard of this rank; call it before there are threads.

        Args:
            rank: This rank.
            num_ranks: Ranks of the run.
            ops_of: Returns the lowered list of a rank.
            is_on_cpus: Whether ranks compute on CPUs.
            request: Decides when a run that is asked to leave is drained, or None if the run drains itself.
        """
        own, guards = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bell, ring = socket.socketpair()
        ring.setblocking(False)
        stacks, written = os.memfd_create("pipesched-stacks"), ExitStack()
        written.enter_context(stacks_written_to(stacks))
        pid = os.getpid()
        guard = os.fork()
        if guard == 0:
            for socket_ in (own, bell, ring):
                socket_.close()
            about = (rank, pid, self._agent, self._page, stacks, guards, num_ranks, ops_of, self._timeout_s)
            be_guard(Guarded(*about, is_on_cpus=is_on_cpus, drain_page=self._drain_page, request=request))
        guards.close()
        start_is_over()
        before = signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        handlers = {told: signal.signal(told, lambda *_: None) for told in STOP_SIGNALS}  # with a handler, it rings
        thread = threading.Thread(target=self._listen, args=(own, bell), daemon=True)
        thread.start()
        try:
            yield
        except PeerLost as error:
            _say(own, LOST, str(error))
            time.sleep(VERDICT_S + _SLACK_S)  # the guard ends this process sooner, as somebody knows why, or this one
            raise
        except Exception as error:
            is_one_line = isinstance(error, ExecutionError | ProfileError | ScheduleError)
            reason = f"rank {rank} failed: " + shortened(f"{type(error).__name__}: {error}", _LONGEST)
            _say(own, FAILED, str(error) if is_one_line else reason)
            raise
        else:
            _say(own, LEFT)
        finally:
            for told, handler in handlers.items():
                signal.signal(told, handler)
            signal.set_wakeup_fd(before)
            ring.close()  # which ends the thread
            thread.join()
            bell.close()
            own.close()
            _await(guard)
            written.close()
            os.close(stacks)

    def _listen(self, own: socket.socket, bell: socket.socket) -> None:
        while True:
            ready = select.select([own, bell], [], [])[0]
            if bell in ready:
                told = bell.recv(64)
                if not told:
                    return
                for number in [number for number in STOP_SIGNALS if number in told]:
                    _say(own, *((LEFT,) if self._is_done else (TOLD, number.name)))
                    os._exit(128 + number)
            if own in ready:
                if not heard(own):
                    print(f"executor: the guard of process {os.getpid()} is gone", file=sys.stderr, flush=True)
                os._exit(_FAILED)


def _say(own: socket.socket, *words: str) -> None:
    with suppress(OSError):  # the guard may be gone
        own.send(" ".join(words).encode()[:MESSAGE_BYTES])


def _await(guard: int) -> None:
    """Wait for the end of the guard."""
    until_s = time.monotonic() + _LEAVING_S
    while os.waitpid(guard, os.WNOHANG)[0] == 0:
        if time.monotonic() > until_s:
            os.kill(guard, signal.SIGKILL)
        time.sleep(0.002)
