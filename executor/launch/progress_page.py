"""The progress page: shared memory where every rank writes where it is, readable even when the rank is dead."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipesched.executor import NOBODY, listen_to_waits


class Whereabouts(NamedTuple):
    """Where a rank is.

    Attributes:
        place: The position in its list; -1 before its first op.
        num_ops: How many ops it has begun in all.
        since_ns: When it began the last one [ns of the monotonic clock].
        waits_since_ns: Since when it waits; written before `whom`, so that no wait is taken for a longer one.
        whom: The rank that it waits for, `EVERYBODY` or `NOBODY`.
        pid: Its process; -1 before that has come to its work.
    """

    place: int = -1
    num_ops: int = -1
    since_ns: int = -1
    waits_since_ns: int = -1
    whom: int = NOBODY
    pid: int = -1


class ProgressPage:
    """The whereabouts of every rank, by the number of its process."""

    _ROW = struct.Struct("<6q")
    _OP = struct.Struct("<3q")
    _WAIT = struct.Struct("<2q")
    _PID = struct.Struct("<q")

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> ProgressPage:
        path.write_bytes(cls._ROW.pack(*Whereabouts()) * num_ranks)
        return cls(path)

    def __enter__(self) -> ProgressPage:
        return self

    def __exit__(self, *args: object) -> None:
        self._map.close()

    def writer(self, number: int) -> Callable[[int], None]:
        """Return what process `number` calls with the position of the op that it is at; its waits are written too."""
        place, memory, count = number * self._ROW.size, self._map, 0
        pack_op, pack_wait, now_ns = self._OP.pack_into, self._WAIT.pack_into, time.monotonic_ns
        wait_place = place + self._OP.size

        def write(index: int) -> None:
            nonlocal count
            count += 1
            pack_op(memory, place, index, count, now_ns())

        listen_to_waits(lambda whom: pack_wait(memory, wait_place, now_ns(), whom))
        self._PID.pack_into(memory, wait_place + self._WAIT.size, os.getpid())
        return write

    def read(self, number: int) -> Whereabouts:
        """Return where process `number` is."""
        return Whereabouts(*self._ROW.unpack_from(self._map, number * self._ROW.size))
