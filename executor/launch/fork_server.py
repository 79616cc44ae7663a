"""The fork server of ranks: ``python -P -m pipesched.executor.launch.fork_server SOCKET LAUNCHER MODULE``.

`fork_client` starts it. The server imports the modules of a rank, above all torch, and waits. On request it forks a
rank, which has nothing left to import, and it reports the exit code of each rank. A thread does the imports, so that
the server can listen to the launcher meanwhile. The thread ends before the first fork, so that no fork inherits its
locks. CUDA is not touched before the fork either. Where a fork is not enough, a rank is a fresh Python.

The server outlives its launcher until it has ended the ranks and removed their folders. If a signal
has stopped the server, the end of the launcher continues it. The server adopts orphans of ranks, and ends them with the
last rank.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, final

from pipesched.profiles.processes import adopt_orphans, can_fork, command, end_children, end_with

_LOOK_S = 1.0
"""Time between two checks that the launcher runs: another process may hold its end of the connection open [s]."""

_POLL_S = 0.001
"""Time between two checks that a thread is gone [s]."""

_TOLD_TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""Signals that a terminal or a job manager sends to all processes; the launcher decides when this process ends."""

ModuleRunner: TypeAlias = Callable[[str, list[str]], int]
"""Runs a module, as a forked process does, with these arguments; returns its exit code."""


@final
class Server:
    """Starts processes for one launcher.

    Args:
        connection: Connection to the launcher. Lines of JSON: ``{"load": true}``, ``{"start": number, ...}``,
            ``{"kill": number}`` and ``{"remove": folder}`` from it, ``{"ended": number, "code": exit code}`` to it.
        launcher: Process id of the launcher.
        load: Imports the modules of a rank, once, in a thread.
    """

    def __init__(self, connection: socket.socket, launcher: int, load: Callable[[], ModuleRunner]) -> None:
        self._connection = connection
        self._launcher = launcher
        self._load = load
        self._work: ModuleRunner | None = None
        self._loader: threading.Thread | None = None
        self._is_loading = self._is_alone = False
        self._asked: list[dict[str, Any]] = []  # processes that are not there yet
        self._pid = os.getpid()
        os.chdir("/")  # a user may delete any other folder, and MKL then ends the process
        adopt_orphans()
        if can_fork():
            end_with(launcher, signal.SIGCONT)
        self._handlers = {told: signal.signal(told, signal.SIG_IGN) or signal.SIG_DFL for told in _TOLD_TO_ALL}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TOLD_TO_ALL)  # the launcher blocks signals while it starts us
        self._unread = b""
        self._numbers: dict[int, int] = {}  # of each process that runs
        self._folders: list[str] = []

    def serve(self) -> None:
        """Serve until the launcher is gone; then end all processes and remove all folders."""
        try:
            self._serve()
        finally:
            for pid in self._numbers:
                os.kill(pid, signal.SIGKILL)
            for pid in self._numbers:
                os.waitpid(pid, 0)
            end_children()
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _serve(self) -> None:
        bell, self._ring = socket.socketpair()
        bell.setblocking(False)
        self._ring.setblocking(False)
        signal.set_wakeup_fd(self._ring.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, it rings
        with selectors.DefaultSelector() as selector:
            selector.register(bell, selectors.EVENT_READ)
            selector.register(self._connection, selectors.EVENT_READ)
            is_there = True
            while is_there:
                can_start = bool(self._asked) and self._has_loaded()
                ready = {key.fileobj for key, _ in selector.select(0 if can_start else _LOOK_S)}
                if bell in ready:
                    bell.recv(4096)
                    self._reap()
                is_there = self._listen() if self._connection in ready else os.getppid() == self._launcher
                if can_start and self._asked and is_there:  # one at a time: the launcher is listened to between them
                    self._start(self._asked.pop(0))
        signal.set_wakeup_fd(-1)

    def _listen(self) -> bool:
        """Handle the requests of the launcher; return whether the launcher is still there."""
        try:
            told = self._connection.recv(65536)
        except ConnectionError:
            return False
        *lines, self._unread = (self._unread + told).split(b"\n")
        for line in lines:
            self._do(json.loads(line))
        return bool(told)

    def _do(self, asked: dict[str, Any]) -> None:
        match asked:
            case {"load": _}:
                self._begin_loading()
            case {"kill": killed}:
                self._kill(killed)
            case {"remove": folder}:
                self._folders.append(folder)
            case _:
                self._asked.append(asked)
                if not asked["fresh"]:
                    self._begin_loading()

    def _kill(self, number: int) -> None:
        """End a process, whether it runs or waits for its start."""
        for pid, running in self._numbers.items():
            if running == number:
                os.kill(pid, signal.SIGKILL)
        if any(asked["start"] == number for asked in self._asked):
            self._asked = [asked for asked in self._asked if asked["start"] != number]
            self._tell({"ended": number, "code": -signal.SIGKILL})

    def _begin_loading(self) -> None:
        if self._loader is None:
            self._is_loading = True
            self._loader = threading.Thread(target=self._load_beside, daemon=True)
            self._loader.start()

    def _load_beside(self) -> None:
        try:
            self._work = self._load()
        finally:
            self._is_loading = False
            self._ring.send(b".")

    def _has_loaded(self) -> bool:
        """Return whether nothing is being loaded; there is no other thread then.

        Raises:
            RuntimeError: Loading failed, and has already reported why.
        """
        if self._loader is not None and not self._is_loading and not self._is_alone:
            self._loader.join()
            if self._work is None:
                raise RuntimeError("the modules of the job could not be loaded")
            _await_end(self._loader)
            self._is_alone = True
        return not self._is_loading

    def _start(self, asked: dict[str, Any]) -> None:
        work = None if asked["fresh"] else self._work
        try:
            pid = os.fork()
        except OSError as error:
            Path(asked["log"]).write_text(f"cannot be started: {error}")
            self._tell({"ended": asked["start"], "code": 1})
            return
        if not pid:
            self._become(asked, work)
        self._numbers[pid] = asked["start"]

    def _reap(self) -> None:
        ended: dict[int, int] = {}
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid in self._numbers:  # else it was a rank's child
                ended[self._numbers.pop(pid)] = os.waitstatus_to_exitcode(status)
        if not self._numbers:
            end_children()
        for number, code in ended.items():
            self._tell({"ended": number, "code": code})

    def _tell(self, what: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(what).encode() + b"\n")
        except ConnectionError:
            return  # the launcher is gone, as its connection will show

    def _become(self, asked: dict[str, Any], work: ModuleRunner | None) -> None:
        """Run the requested module in the forked process, then exit; without `work`, run it in a fresh Python."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for told, handler in self._handlers.items():
                signal.signal(told, handler)
            self._connection.close()
            _redirect(asked["log"])
            os.environ.clear()
            os.environ.update(asked["environment"])
            os.chdir(asked["folder"])
            if work is None:
                words = command(asked["module"], *asked["arguments"], "--parent", str(self._pid))
                os.execv(words[0], words)  # noqa: S606 -- our own interpreter and module
            end_with(self._pid)
            path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
            sys.path[:0] = [folder for folder in path if folder not in sys.path]
            code = work(asked["module"], asked["arguments"])
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


def _await_end(thread: threading.Thread) -> None:
    """Wait until the system has removed a thread: Python may join it earlier.

    An ending thread takes locks of MKL. A process forked at this moment would wait for these locks forever, at its
    first matrix product.
    """
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(_POLL_S)


def _redirect(log: str) -> None:
    """Read from /dev/null and write to a file, at the level of file descriptors, so that libraries do too."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)


def main() -> None:
    """Serve the launcher at the other end of the socket."""
    _, connection, launcher, module = sys.argv
    code = 1
    try:
        Server(socket.socket(fileno=int(connection)), int(launcher), partial(_load, module)).serve()
        code = 0
    except Exception:  # noqa: BLE001 -- as Python does with an uncaught exception
        traceback.print_exc()
    finally:
        os._exit(code)  # even during an import


def _load(module: str) -> ModuleRunner:
    import torch

    import_module(module)  # the module of most processes

    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first optimizer loads half as much again

    def work(module: str, arguments: list[str]) -> int:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # as if torch had been loaded with it
        code: int = import_module(module).main(arguments)
        return code

    gc.collect()
    gc.freeze()  # pages that are never written stay shared with the ranks
    return work


if __name__ == "__main__":
    main()
