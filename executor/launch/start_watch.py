"""The watch over a rank's process under torchrun while it loads what it needs, before its guard is there.

A process beside it waits until it is told that the guard has come (`start_is_over`). If the rank ends before, it tells
the guards of the others, for which it has to load torch itself; if torchrun's store goes, with an agent that has given
up, it ends the rank. Only the standard library is loaded before.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from contextlib import suppress
from threading import Thread
from typing import NoReturn

from pipesched.profiles.processes import end_with, exit_code_of

_CONNECT_S = 10.0
_ENDING_S, _AGENT_S = 0.3, 0.05
"""How long a process may take to be gone after its files, and an agent after the ranks that end with it [s]."""
_LATE_S = 1.0
"""How much later than others a rank tells of its end that has said why, or is not the first [s]."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)

_watchers: list[tuple[int, int]] = []
"""The process that watches, and where it is told that it is over."""


def is_under_agent() -> bool:
    """Return whether an agent of torchrun has started this process, on a system where it can be watched over."""
    return "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux"


def watch_start() -> None:
    """Let a process watch over this one, if it is a rank under torchrun; and let it end with its agent."""
    if not is_under_agent():
        return
    agent, pid = os.getppid(), os.getpid()
    end_with(agent)
    told, teller = os.pipe()
    watcher = os.fork()
    if not watcher:
        os.close(teller)
        _watch(pid, agent, told)
    os.close(told)
    _watchers.append((watcher, teller))


def start_is_over() -> None:
    """Let the process that watches over this one end, as its guard has come."""
    while _watchers:
        watcher, teller = _watchers.pop()
        with suppress(OSError):
            os.write(teller, b".")
        os.close(teller)
        os.kill(watcher, signal.SIGCONT)
        os.waitpid(watcher, 0)


def _watch(pid: int, agent: int, told: int) -> NoReturn:
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        process, parent = os.pidfd_open(pid), os.pidfd_open(agent)
        end_with(pid, signal.SIGCONT)
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        with socket.create_connection(address, timeout=_CONNECT_S) as store:  # nothing is said: it ends with the store
            ready = select.select([told, process, store.fileno()], [], [])[0]
            if told not in ready and process not in ready:
                where = ":".join(map(str, address))
                _print(f"torchrun's store at {where} is gone, and with it an agent")
                os.kill(pid, signal.SIGKILL)  # nobody will meet it
            elif told not in ready or not os.read(told, 1):
                _tell_end(pid, process, parent, store)
    except OSError:
        pass  # the rank was gone at once, or there is no store
    finally:
        os._exit(0)


def _tell_end(pid: int, process: int, agent: int, store: socket.socket) -> None:
    """Say that the rank's process has ended, here and to all guards, as long as the store is there."""
    select.select([process], [], [], _ENDING_S)
    code = exit_code_of(pid)
    if code == -signal.SIGKILL and select.select([agent], [], [], _AGENT_S)[0]:
        text = _print("torchrun's agent, which has started it, is gone")
    elif code is None or code == -signal.SIGKILL:
        text = _print("its process ended" if code is None else f"the process was killed by signal {-code}")
    else:  # it has said why, or its agent, which had a reason, has ended it
        text = _named(f"its process ended with exit code {code}" if code > 0 else f"it was ended by signal {-code}")
        if select.select([store], [], [], _LATE_S)[0]:
            return

    def leave() -> None:
        select.select([store], [], [])
        os._exit(0)

    Thread(target=leave, daemon=True).start()
    from pipesched.executor.launch.guard_board import GuardBoard

    with suppress(RuntimeError):
        GuardBoard().decide(text)


def _named(reason: str) -> str:
    return f"process {os.environ['RANK']} failed before it had read its job: {reason}"


def _print(reason: str) -> str:
    print(f"executor: {_named(reason)}", file=sys.stderr, flush=True)
    return _named(reason)
