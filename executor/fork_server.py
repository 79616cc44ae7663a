"""The process that ranks are forked from: ``python -m pipesched.executor.fork_server SOCKET``.

`executor.forks` starts it. It imports what a rank needs, torch above all, and waits. Asked for a rank, it forks one,
which has nothing left to import; when one ends it tells how. It computes nothing itself and starts no thread, so what
is forked is whole; CUDA is not touched before the fork either.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

_END_WITH_PARENT = 1
"""Linux: ``PR_SET_PDEATHSIG``."""


def end_with_parent() -> None:
    """Let the system end this process with its parent, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)


@final
class Server:
    """Forks for one launcher.

    Args:
        connection: To the launcher. Lines of JSON: ``{"start": number, ...}`` and ``{"kill": number}`` from it,
            ``{"ended": number, "code": exit code}`` to it.
        work: What a forked process does with its arguments; returns its exit code.
    """

    def __init__(self, connection: socket.socket, work: Callable[[list[str]], int]) -> None:
        self._connection = connection
        self._work = work
        self._unread = b""
        self._numbers: dict[int, int] = {}  # of each process that runs

    def serve(self) -> None:
        """Go on until the launcher is gone; no process is left then."""
        bell, ring = socket.socketpair()
        bell.setblocking(False)
        ring.setblocking(False)
        signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, it rings
        with selectors.DefaultSelector() as selector:
            selector.register(bell, selectors.EVENT_READ)
            selector.register(self._connection, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if bell in ready:
                    bell.recv(4096)
                    self._reap()
                if self._connection in ready and not self._listen():
                    break
        signal.set_wakeup_fd(-1)
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)

    def _listen(self) -> bool:
        """Do what the launcher has asked for since; return whether it is still there."""
        try:
            told = self._connection.recv(65536)
        except ConnectionError:
            return False
        *lines, self._unread = (self._unread + told).split(b"\n")
        for line in lines:
            self._do(json.loads(line))
        return bool(told)

    def _do(self, asked: dict[str, Any]) -> None:
        if "kill" in asked:
            for pid in [pid for pid, number in self._numbers.items() if number == asked["kill"]]:
                os.kill(pid, signal.SIGKILL)
            return
        try:
            pid = os.fork()
        except OSError as error:
            Path(asked["log"]).write_text(f"cannot be started: {error}")
            self._tell(asked["start"], 1)
            return
        if not pid:
            self._become(asked)
        self._numbers[pid] = asked["start"]

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._tell(self._numbers.pop(pid), os.waitstatus_to_exitcode(status))

    def _tell(self, number: int, code: int) -> None:
        try:
            self._connection.sendall(json.dumps({"ended": number, "code": code}).encode() + b"\n")
        except ConnectionError:
            return  # the launcher is gone, as its connection will show

    def _become(self, asked: dict[str, Any]) -> None:
        """Be what was asked for, in the forked process, and end with it."""
        code = 1
        try:
            end_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._connection.close()
            _redirect(asked["log"])
            os.environ.clear()
            os.environ.update(asked["environment"])
            os.chdir(asked["folder"])
            sys.path[:0] = [asked["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            code = self._work(asked["arguments"])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 -- nothing may get back into the server's loop
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                # not sys.exit: gloo may hold tensors, and one freed while Python shuts down aborts the process
                os._exit(code)


def _redirect(log: str) -> None:
    """Read nothing, and write all to a file, also what libraries write."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)


def main() -> None:
    """Serve the launcher at the other end of the socket."""
    # the terminal tells all processes; the launcher says what becomes of these
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    import torch

    from pipesched.executor.__main__ import main as run_rank

    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first optimizer loads half as much again

    def work(arguments: list[str]) -> int:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # as if torch had been loaded with it
        return run_rank(arguments)

    gc.collect()
    gc.freeze()  # pages that are never written stay shared with the ranks
    Server(connection, work).serve()


if __name__ == "__main__":
    main()
