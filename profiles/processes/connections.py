"""The users at the other ends of this process' connections, from Linux's tables of sockets.

The connections of torch.distributed are not authenticated. A connection within this machine has both ends in the
system's tables, so the user at the other end can be checked once the connection exists.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

_ROOT = 0
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9
"""Cells of a row of the tables: both addresses, in the system's format, user id, and number of the socket."""


def open_sockets() -> set[int]:
    """Return the numbers of this process' sockets; empty if the system does not report them."""
    numbers = set()
    with suppress(OSError):
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    numbers.add(int(target[8:-1]))
    return numbers


def strangers(known: Collection[int]) -> list[int]:
    """Return the users, except this one and root, at the other ends of this process' connections.

    Args:
        known: Earlier sockets, which are ignored.
    """
    tables = [Path("/proc/self/net", name) for name in ("tcp", "tcp6")]
    rows = [line for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return other_owners(rows, open_sockets().difference(known), os.geteuid())


def other_owners(rows: Iterable[str], inodes: Collection[int], user: int) -> list[int]:
    """Return the users, except `user` and root, that own the other ends of the sockets `inodes`.

    Args:
        rows: Rows of /proc/net/tcp, without its header; ends on other machines have no row.
        inodes: Numbers of sockets.
        user: User id of this process.
    """
    sockets = [row.split() for row in rows]
    owners = {(cells[_LOCAL], cells[_REMOTE]): int(cells[_USER]) for cells in sockets}
    ends = ((cells[_REMOTE], cells[_LOCAL]) for cells in sockets if int(cells[_INODE]) in inodes)
    return sorted({owners.get(end, user) for end in ends} - {user, _ROOT})
