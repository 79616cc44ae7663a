"""Temporary folders of a process; after a killed process another process removes them.

    pipesched-x1y2z3ab/owner    names the machine; the process holds a lock on this file until it ends

The next process that makes such a folder removes all folders with a free lock. A folder of another user or machine
stays. A folder without the file stays too: its process may be about to write the file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

_PREFIX, _OWNER = "pipesched-", "owner"
_LONGEST = 1000
"""Largest size of the file [bytes]."""


@contextmanager
def owned_folder() -> Iterator[Path]:
    """Yield a new folder; the end of the block removes it, or else the next process that calls this function."""
    remove_abandoned(Path(gettempdir()))
    with TemporaryDirectory(prefix=_PREFIX) as name:
        lock = _locked(Path(name))
        try:
            yield Path(name)
        finally:
            if lock is not None:
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock the folder for this process; return the descriptor that holds the lock, or None without locks."""
    unnamed = folder / f".{_OWNER}"  # the file gets its final name after the lock
    descriptor = os.open(unnamed, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, _machine())
        unnamed.rename(folder / _OWNER)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def remove_abandoned(parent: Path) -> None:
    """Remove the folders in `parent` that processes of this user on this machine have left."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    descriptor = os.open(folder / _OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.read(descriptor, _LONGEST) == _machine():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the owner lives
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _machine() -> bytes:
    """Return the name of this machine: its host name, and the id of its installation if the system has one."""
    number = b""
    with suppress(OSError):
        number = Path("/etc/machine-id").read_bytes().strip()
    return (socket.gethostname().encode() + b" " + number)[:_LONGEST]
