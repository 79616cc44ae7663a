"""The progress page: shared memory where every rank writes its position, readable even when the rank is dead."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self, final

from pipesched.executor import ITS_CHECKPOINT, NOBODY, listen_to_waits
from pipesched.profiles.processes import is_stopped
from pipesched.schedules.formats import parse_op
from pipesched.schedules.ops import Op


class SharedPage:
    """Memory that processes share by a file."""

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


class RankState(NamedTuple):
    """The state of a rank: its position, as its process writes it, and its process, as others see it.

    Times are ages at the moment of the reading, because clocks of machines differ.

    Attributes:
        place: The position in its list; -1 before its first op.
        num_ops: Ops begun in total.
        at_op_s: Time since the current op began; 0 before the first one [s].
        waits_s: Time since its last wait began; 0 before the first one [s].
        whom: The rank that it waits for, `EVERYBODY`, `ITS_CHECKPOINT` or `NOBODY`.
        pid: Its process on its machine; -1 before its work begins.
        text: The op as its list writes it; empty before the first one.
        rank: Its number, or -1 if the reader does not know it.
        is_stopped: Whether a signal has stopped the process; then it waits for nobody.
        ending: How the process ended, or None while it runs.
        silent_s: Time since the process last reported its position, if it counts as silent; else 0 [s].
    """

    place: int = -1
    num_ops: int = -1
    at_op_s: float = 0.0
    waits_s: float = 0.0
    whom: int = NOBODY
    pid: int = -1
    text: str = ""
    rank: int = -1
    is_stopped: bool = False
    ending: str | None = None
    silent_s: float = 0.0

    @property
    def op(self) -> Op | None:
        """The current op; None before the first one."""
        return parse_op(self.text) if self.text else None

    @property
    def is_waiting(self) -> bool:
        """Whether the rank waits for another rank, so that it continues when that rank does."""
        return self.whom not in (NOBODY, ITS_CHECKPOINT) and not self.is_stopped

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.op or 'its start'}"


class ProgressPage(SharedPage):
    """The current op of every rank, by the number of its process.

    A rank has two rows. The process writes the op that the host has reached to the first row. A GPU may be far behind
    its host: the second row has the op that the GPU has reached, while it works.
    """

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> ProgressPage:
        """Return a page in a file, where all processes of this machine find it."""
        return cls._in_file(path, _NOWHERE * 2 * num_ranks)

    @classmethod
    def in_memory(cls, num_ranks: int) -> ProgressPage:
        """Return a page for threads of this process."""
        memory = mmap.mmap(-1, len(_NOWHERE) * 2 * num_ranks)
        memory[:] = _NOWHERE * 2 * num_ranks
        return cls(memory)

    def __enter__(self) -> ProgressPage:
        return self

    def __exit__(self, *args: object) -> None:
        self._cells.release()
        self._map.close()

    def writer(self, number: int) -> Callable[[int, Op], None]:
        """Return a function that process `number` calls with each op and its position; waits are written too."""
        row = self.host_row(number)
        listen_to_waits(row.wait)
        row.begin()
        return row.reach

    def host_row(self, number: int) -> PageRow:
        """Return the row of the host of rank, or process, `number`."""
        return PageRow(self._cells, self._map, number)

    def device_row(self, number: int) -> PageRow:
        """Return the row of the device of process `number`."""
        return PageRow(self._cells, self._map, self._num_ranks + number)

    def read(self, number: int) -> RankState:
        """Return the position of the device of process `number` if it is written, else of the process."""
        device = self._row(self._num_ranks + number)
        return device if device.pid > 0 else self.read_host(number)

    def read_host(self, number: int) -> RankState:
        """Return the position of process `number` itself: the op at which it ended or was stopped."""
        return self._row(number)

    def moved_ns(self, number: int) -> int:
        """Return when process `number` itself last wrote its position [ns of the monotonic clock of this machine]."""
        first = number * _WIDTH
        return max(self._cells[first + _SINCE], self._cells[first + _WAITS_SINCE])

    def look(self, number: int, ending: str | None = None) -> RankState:
        """Return the state of process `number` of this machine; if it has ended or stopped, at its host's position.

        Args:
            number: Number of the process.
            ending: How the process ended, or None while it runs.
        """
        state = self.read(number)
        is_stopped = ending is None and is_stopped_at(state)
        if is_stopped or ending is not None:
            state = self.read_host(number)
        return state._replace(is_stopped=is_stopped, ending=ending)

    @property
    def _num_ranks(self) -> int:
        return len(self._map) // len(_NOWHERE) // 2

    def _row(self, row: int) -> RankState:
        first = row * _WIDTH
        count, numbers, text = None, [], ""
        while count != (count := self._cells[first + _NUM_OPS]):  # else that text may be written to again
            whom = self._cells[first + _WHOM]  # before its time: a write in between only makes the wait shorter
            numbers = [*self._cells[first : first + _NUMBERS]]
            numbers[_WHOM] = whom
            text = self._map[_texts_of(row)[count % 2]].decode().strip() if count > 0 else ""
        place, num_ops, since_ns, waits_since_ns, whom, pid = numbers
        return RankState(place, num_ops, _age_s(since_ns), _age_s(waits_since_ns), whom, pid, text)


@final
class PageRow:
    """One row of a progress page, for its only writer.

    Each number is written by one store, so that a reader never sees half a number, nor the zeros that
    `struct.pack_into` writes first. The text of an op alternates between two places, and is written before the op is
    counted. So the text of the counted op stays valid even if the rank is killed while it writes.
    """

    def __init__(self, cells: memoryview, memory: mmap.mmap, row: int) -> None:
        self._cells, self._map = cells, memory
        self._first, self._texts = row * _WIDTH, _texts_of(row)
        self._count = 0

    def begin(self) -> None:
        """Note that this process writes here from now on."""
        self._cells[self._first + _PID] = os.getpid()

    def end(self) -> None:
        """Note that this row has no writer any more."""
        self._cells[self._first + _PID] = -1

    def reach(self, index: int, op: Op) -> None:
        """Write the op that the rank has reached, and its position in the list."""
        cells, first = self._cells, self._first
        self._count += 1
        self._map[self._texts[self._count % 2]] = str(op).encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
        cells[first + _SINCE] = time.monotonic_ns()
        cells[first + _PLACE] = index
        cells[first + _NUM_OPS] = self._count

    def wait(self, whom: int) -> None:
        """Write the rank that is waited for, after the time, so that a wait never looks longer than it is."""
        self._cells[self._first + _WAITS_SINCE] = time.monotonic_ns()
        self._cells[self._first + _WHOM] = whom


_PLACE, _NUM_OPS, _SINCE, _WAITS_SINCE, _WHOM, _PID = range(6)
_NUMBERS = _PID + 1
_TEXT_BYTES = 120
"""Longest text of an op."""
_NOWHERE = struct.pack(f"={_NUMBERS}q", -1, -1, -1, -1, NOBODY, -1) + b" " * 2 * _TEXT_BYTES
_WIDTH = len(_NOWHERE) // struct.calcsize("=q")


def _texts_of(row: int) -> tuple[slice, slice]:
    """Return the two places for the text of an op in a row."""
    end = (row + 1) * len(_NOWHERE)
    return slice(end - 2 * _TEXT_BYTES, end - _TEXT_BYTES), slice(end - _TEXT_BYTES, end)


def _age_s(since_ns: int) -> float:
    return (time.monotonic_ns() - since_ns) / 1e9 if since_ns > 0 else 0.0


def is_stopped_at(state: RankState) -> bool:
    """Return whether the process of a rank of this machine is stopped by a signal."""
    return state.pid > 0 and is_stopped(state.pid)
