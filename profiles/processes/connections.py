"""Who is at the other end of this process' connections: Linux tells the owner of every socket of this machine.

What connects processes for torch.distributed asks nobody for a name. A connection over this machine has both its ends
in the system's tables, so whose the other one is can be known when it is there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_ROOT = 0


class _Socket(NamedTuple):
    """A row of the system's tables: addresses as they are written there, the user's number, and the file's."""

    local: str
    remote: str
    user: int
    inode: int


def open_sockets() -> set[int]:
    """Return the numbers of this process' sockets; none where the system does not tell."""
    numbers = set()
    with suppress(OSError):
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    numbers.add(int(target[8:-1]))
    return numbers


def strangers(known: Collection[int]) -> list[int]:
    """Return which users, but for this one and root, are at the other end of this process' connections.

    Args:
        known: Sockets that are not looked at: those of before.
    """
    tables = [Path("/proc/self/net", name) for name in ("tcp", "tcp6")]
    rows = [line for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return other_owners(rows, open_sockets().difference(known), os.geteuid())


def other_owners(rows: Iterable[str], inodes: Collection[int], user: int) -> list[int]:
    """Return which users, but for `user` and root, own the other ends of the sockets `inodes`.

    Args:
        rows: Rows of /proc/net/tcp, without its head; who is on another machine is in none.
    """
    sockets = list(_read(rows))
    owners = {(socket.local, socket.remote): socket.user for socket in sockets}
    ends = ((socket.remote, socket.local) for socket in sockets if socket.inode in inodes)
    return sorted({owners.get(end, user) for end in ends} - {user, _ROOT})


def _read(rows: Iterable[str]) -> Iterator[_Socket]:
    for row in rows:
        cells = row.split()
        yield _Socket(cells[1], cells[2], int(cells[7]), int(cells[9]))
