"""Shared pages: memory of 64-bit numbers that several processes see, each number written by one store."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Self


class SharedPage:
    """Memory that processes share by a file.

    Args:
        memory: The memory.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._map = memory
        self._cells = memoryview(memory).cast("q")

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the page that a process has created in a file."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), 0))

    @classmethod
    def _in_file(cls, path: Path, content: bytes) -> Self:
        path.write_bytes(content)
        return cls.open(path)
