"""The watch over a rank's process under torchrun while it loads its modules, before its guard starts.

A process beside the rank watches until the guard starts and ends it (`start_is_over`). If the rank ends before, the
watcher reports that to all others. It ends the rank if another rank has reported the cause of the end of the run, or if
torchrun's store is gone because an agent has given up. A signal that asks the rank to end wakes the watcher. So does a
rank that leaves by itself, because its exit code cannot be read any more once its agent knows it. All this needs only
the standard library: torch takes seconds to load.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from pipesched.executor.launch.verdict_store import VerdictStore, is_told_here
from pipesched.profiles.processes import end_with, exit_code_of
from pipesched.schedules import printable

_TICK_S = 0.1
_ENDING_S, _AGENT_S = 0.3, 0.05
"""Time until a process is gone after its files, and an agent after the ranks that end with it [s]."""
_LATE_S = 1.0
"""Extra delay of the report of a rank that has reported itself, or is not the first to end [s]."""
_LEAVES = b"\0"
"""Message of a rank that ends by itself; other messages are the number of a signal."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


@dataclass(frozen=True, slots=True)
class _Watched:
    """The process that watches over a rank, and the socket on which signals wake it."""

    watcher: int
    ring: socket.socket


_watches: list[_Watched] = []
"""The one over this process."""


def is_under_agent() -> bool:
    """Return whether an agent of torchrun has started this process, on a system where it can be watched over."""
    return "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux"


def watch_start() -> None:
    """Let a process watch over this one, if it is a rank under torchrun; and let it end with its agent."""
    if not is_under_agent():
        return
    agent, pid = os.getppid(), os.getpid()
    end_with(agent)
    with ExitStack() as shared:  # a process that is gone cannot be opened: so both are before the watch begins
        try:
            rank_fd, agent_fd = _opened(pid, shared), _opened(agent, shared)
        except OSError:
            return  # the agent is gone
        bell, ring = socket.socketpair()
        shared.callback(bell.close)
        watcher = os.fork()
        if not watcher:
            ring.close()
            _watch(pid, rank_fd, agent_fd, bell)
    ring.setblocking(False)
    signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _end_by)  # with a handler, it rings
    _watches.append(_Watched(watcher, ring))
    atexit.register(leave_by_oneself)


def start_is_over() -> None:
    """End the process that watches over this one, once its guard runs: it may be waiting for the store."""
    while _watches:
        watched = _watches.pop()
        os.kill(watched.watcher, signal.SIGKILL)  # before the bell is silent, which says that the rank has ended
        os.waitpid(watched.watcher, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        watched.ring.close()


def leave_by_oneself() -> None:
    """Notify the watcher that this process ends by itself, and has reported the cause."""
    for watched in _watches:
        with suppress(OSError):
            watched.ring.send(_LEAVES)


def _end_by(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _opened(pid: int, stack: ExitStack) -> int:
    """Return a descriptor of a process, which the stack closes."""
    descriptor = os.pidfd_open(pid)
    stack.callback(os.close, descriptor)
    return descriptor


def _watch(pid: int, rank_fd: int, agent_fd: int, bell: socket.socket) -> NoReturn:
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        end_with(pid, signal.SIGCONT)
        try:
            store = VerdictStore()
        except OSError:  # the agent is gone, as it is soon after its rank has ended, or the rank will say it
            _tell_alone(pid, rank_fd, agent_fd, bell)
        else:
            with store:
                _watch_beside(store, rank_fd, agent_fd, pid, bell)
    except OSError:
        pass  # the store is gone, and with it all other ranks
    finally:
        os._exit(0)


def _tell_alone(pid: int, rank_fd: int, agent_fd: int, bell: socket.socket) -> None:
    """Report here how the rank has ended, if it has and no other process reports the cause."""
    if select.select([rank_fd], [], [], 0)[0]:
        code, is_told = _end_of(rank_fd, pid, bell)
        if not is_told:
            _print(_end_text(agent_fd, code, is_told=False))


def _watch_beside(store: VerdictStore, rank_fd: int, agent_fd: int, pid: int, bell: socket.socket) -> None:
    """Watch until the rank has ended, or the run has."""
    cause = None
    while cause is None:
        ready = select.select([rank_fd, bell.fileno(), store.socket.fileno()], [], [], _TICK_S)[0]
        if rank_fd in ready or bell.fileno() in ready:
            code, is_told = _end_of(rank_fd, pid, bell)
            _tell_end(store, agent_fd, code, is_told=is_told)
            break
        try:
            cause = store.verdict()
        except TimeoutError:
            return  # it is there, and slow: the guard will ask it again
        except OSError:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            _print(_named(f"torchrun's store at {where} is gone, and with it an agent"))
            break
    if cause is not None and is_told_here(cause):
        _print(cause.text)
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(rank_fd, signal.SIGKILL)  # no other rank will meet it


def _end_of(rank_fd: int, pid: int, bell: socket.socket) -> tuple[int | None, bool]:
    """Return how the rank has ended, and whether somebody else reports the cause: the rank itself, or another rank.

    The first value is an exit code, or a negative signal, which may only have been sent, or None if it is unknown.
    """
    bell.setblocking(False)
    with suppress(BlockingIOError):
        told = bell.recv(1)
        if told and told != _LEAVES:
            return -told[0], True
        if told:
            select.select([rank_fd], [], [], _ENDING_S)
            return exit_code_of(pid), True
    select.select([rank_fd], [], [], _ENDING_S)  # its files go before it
    code = exit_code_of(pid)
    return code, code not in (None, -signal.SIGKILL)


def _tell_end(store: VerdictStore, agent_fd: int, code: int | None, *, is_told: bool) -> None:
    """Report the end of the rank's process, here and to all guards while the store is there."""
    text = _end_text(agent_fd, code, is_told=is_told)
    if is_told:
        until_s = time.monotonic() + _LATE_S
        while store.verdict() is None and time.monotonic() < until_s:
            time.sleep(_TICK_S)
    else:
        _print(text)
    try:
        cause = store.decide(text)
    except TimeoutError:  # it is slow; a late answer here would be taken for another one
        with VerdictStore() as anew:
            cause = anew.decide(text)
    if is_told_here(cause):
        _print(cause.text)


def _end_text(agent_fd: int, code: int | None, *, is_told: bool) -> str:
    """Return the message about the end of the rank's process."""
    if code is None:
        return _named("its process ended")
    if code >= 0:
        return _named(f"its process ended with exit code {code}")
    if is_told:
        return _named(f"it was ended by signal {-code}")
    if select.select([agent_fd], [], [], _AGENT_S)[0]:
        return _named("torchrun's agent, which has started it, is gone")
    return _named(f"the process was killed by signal {-code}")


def _named(reason: str) -> str:
    return f"process {os.environ['RANK']} failed before it had read its job: {reason}"


def _print(text: str) -> None:
    print(f"executor: {printable(text)}", file=sys.stderr, flush=True)
