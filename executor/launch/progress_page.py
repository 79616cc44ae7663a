"""The progress page: shared memory where every rank writes its position, readable even when the rank is dead."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path


class ProgressPage:
    """Two numbers per rank: the position in its list, and how many ops it has begun in all."""

    _CELL = struct.Struct("<q")

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> ProgressPage:
        path.write_bytes(cls._CELL.pack(-1) * num_ranks * 2)
        return cls(path)

    def __enter__(self) -> ProgressPage:
        return self

    def __exit__(self, *args: object) -> None:
        self._map.close()

    def writer(self, rank: int) -> Callable[[int], None]:
        """Return what a rank calls with the position of the op that it is at."""
        pack, where, memory = self._CELL.pack_into, rank * 2 * self._CELL.size, self._map
        done = 0

        def write(index: int) -> None:
            nonlocal done
            done += 1
            pack(memory, where, index)
            pack(memory, where + 8, done)

        return write

    def read(self, rank: int) -> tuple[int, int]:
        """Return (position, ops begun in all) of a rank; -1 before its first op."""
        where = rank * 2 * self._CELL.size
        return self._CELL.unpack_from(self._map, where)[0], self._CELL.unpack_from(self._map, where + 8)[0]
