"""The fork client: the launcher's side of the fork server. Its processes and their folder end with the launcher.

Importing torch takes a core some seconds. Processes that are forked from a server that has imported it begin at once,
while each process that is started anew imports it again. So each launcher keeps one server (`launch.fork_server`) for
the next run.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import final

from pipesched.profiles import DeviceKind
from pipesched.profiles.processes import can_fork, command, environment, hold_interrupts, is_stopped, owned_folder
from pipesched.schedules.common import require_room_for_torch

_POLL_S = 0.02
_RANK = "pipesched.executor.__main__"
"""The module that most processes run; the server imports it before it forks."""


@final
class Forked:
    """A process of the server, with the needed methods of `subprocess.Popen`."""

    def __init__(self, server: _Server, number: int) -> None:
        self._server = server
        self._number = number

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._server.code(self._number)

    @property
    def servers_end(self) -> str | None:
        """How the server, and this process with it, ended or was stopped by a signal; None while the server runs."""
        if self._server.end_seen is not None:
            return f"{self._server.end_seen}, and they with it"
        return "is stopped by a signal" if self._server.is_stopped() else None

    def kill(self) -> None:
        """Kill the process if it runs."""
        self._server.kill(self._number)

    def wait(self) -> int:
        """Wait for the end of the process; return the exit code."""
        while (code := self.poll()) is None:
            time.sleep(_POLL_S)
        return code


def forks(device: DeviceKind) -> bool:
    """Return whether ranks on `device` are forked from a process that has loaded torch; CUDA may not survive a fork."""
    return can_fork() and device == "cpu"


def prepare(device: DeviceKind) -> None:
    """Let the server load torch for ranks on `device`, while this process continues."""
    if forks(device):
        _server().tell({"load": True})


@contextmanager
def job_folder() -> Iterator[Path]:
    """Yield a new folder that is removed in the end, also if this process is killed meanwhile."""
    server = _server()
    with owned_folder() as folder:
        server.tell({"remove": str(folder.absolute())})
        yield folder


def fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    module: str = _RANK,
    is_fresh: bool = False,
) -> Forked:
    """Start ``python -P -m MODULE`` with `arguments` in the current folder.

    Args:
        environment: All environment variables of the process.
        log: File for the output of the process.
        module: A module of this package with a function ``main(arguments)``. A fresh process also gets
            ``--parent PROCESS``.
        is_fresh: Whether to start a new Python instead of a fork, which takes longer.
    """
    return _server().start(
        {
            "module": module,
            "arguments": [*arguments],
            "environment": {**environment},
            "folder": str(Path.cwd()),
            "log": str(log.absolute()),
            "fresh": is_fresh,
        }
    )


@final
class _Server:
    """The launcher's end of the fork server: its process, and the connection to it."""

    def __init__(self) -> None:
        self._connection, server_end = socket.socketpair()
        with server_end:
            # one thread: threads of a library would be missing in a fork; an existing cache folder: otherwise
            # importing torch._dynamo makes a folder for it
            settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": gettempdir()}
            words = command("pipesched.executor.launch.fork_server", str(server_end.fileno()), str(os.getpid()), _RANK)
            with hold_interrupts():  # until it ignores them, as only the launcher ends it
                self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                    words,
                    env=environment() | settings,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # our stdout is for the launcher
                    pass_fds=[server_end.fileno()],
                )
        self._connection.setblocking(False)
        self._lock = threading.Lock()
        self._unread = b""
        self._codes: dict[int, int | None] = {}
        self._owner = os.getpid()
        self.end_seen: str | None = None

    def is_ours(self) -> bool:
        """Whether the server is running, and this process has started it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def start(self, what: Mapping[str, object]) -> Forked:
        with self._lock:
            number = len(self._codes)
            self._codes[number] = None
        self.tell({"start": number, **what})
        return Forked(self, number)

    def kill(self, number: int) -> None:
        self.go_on()
        self.tell({"kill": number})

    def tell(self, what: Mapping[str, object]) -> None:
        line = json.dumps(what).encode() + b"\n"
        with self._lock:
            if self.end_seen is not None:
                return
            try:
                self._connection.setblocking(True)
                self._connection.sendall(line)
            except ConnectionError:
                return  # it is gone, and so are its processes, as `code` says
            finally:
                self._connection.setblocking(False)

    def is_stopped(self) -> bool:
        return is_stopped(self._process.pid)

    def go_on(self) -> None:
        """Continue the server if a signal has stopped it."""
        self._process.send_signal(signal.SIGCONT)

    def code(self, number: int) -> int | None:
        with self._lock:
            self._listen()
            return self._codes[number]

    def _listen(self) -> None:
        """Read the messages of the server; if the server is gone, its processes were killed with it."""
        while self.end_seen is None:
            try:
                told = self._connection.recv(65536)
            except BlockingIOError:
                return
            except ConnectionError:
                told = b""
            if not told:
                code = self._process.wait()
                self.end_seen = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                self._codes = {n: -signal.SIGKILL if ended is None else ended for n, ended in self._codes.items()}
                return  # and nothing is read any more
            *lines, self._unread = (self._unread + told).split(b"\n")
            for line in lines:
                told_end = json.loads(line)
                self._codes[told_end["ended"]] = told_end["code"]

    def end(self) -> None:
        """Kill the server and its forks if this process has started it; close the connection in any case."""
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            with self._lock:
                self._listen()
        self._connection.close()


_servers: list[_Server] = []
"""The one in use, last."""


def _server() -> _Server:
    """Return the server of this process; start one if needed.

    Raises:
        OneLineError: The address space is too small for torch.
    """
    if not _servers or not _servers[-1].is_ours():
        require_room_for_torch()
        end_server()
        _servers.append(_Server())
        atexit.register(_servers[-1].end)
    return _servers[-1]


def end_server() -> None:
    """End the fork server, if there is one, and all its processes; the next process needs a new server."""
    while _servers:
        server = _servers.pop()
        atexit.unregister(server.end)
        server.end()
