"""The early end of a training run that a signal asks to leave.

A run whose lists have a flush ends after its next pass. Without a flush it ends before its next checkpoint: the op
lists end before a micro-batch that no reader of the lists has reached. The readers of a list are its rank, which reads
ahead, and the ranks that it sends to. In one process the farthest micro-batch is known. Otherwise the launcher, or
under torchrun the first rank's watch, proposes an end. It decides on that end if no rank has reached the end by the
time that all ranks have seen the proposal::

    launcher   proposes 12 ......... all are behind it: decides
    rank 0     8  9  10  11  waits ............................ ends as lists of 12 micro-batches do
    rank 1        8   9  10  11  waits ........................ ends
"""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

from pipesched.executor import PAUSE_SIGNALS
from pipesched.executor.launch.progress_page import SharedPage
from pipesched.schedules import GeneratedOps, Schedule
from pipesched.schedules.ops import Op, computes

_open: list[list[int]] = []
"""The signals received, one list per listener; nested listeners share the outermost list."""


@contextmanager
def pause_requests(
    *, has_checkpoints: bool, signals: tuple[signal.Signals, ...] = PAUSE_SIGNALS
) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether one of `signals` has arrived, here or at an outer `pause_requests`.

    A second signal has its earlier effect and ends the run at once, without the checkpoint. The function always returns
    False if the run has no checkpoints, or outside the main thread.
    """
    if not has_checkpoints or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    if _open:
        heard = _open[0]
        yield lambda: bool(heard)
        return
    asked: list[int] = []
    before = {told: signal.getsignal(told) or signal.SIG_DFL for told in signals}

    def restore() -> None:
        for told, handler in before.items():
            signal.signal(told, handler)

    def note(told: int, frame: object) -> None:  # noqa: ARG001 -- as the system calls it
        asked.append(told)
        restore()

    for told in signals:
        signal.signal(told, note)
    _open.append(asked)
    try:
        yield lambda: bool(asked)
    finally:
        _open.clear()
        restore()


GRACE_S = 10.0
"""Time that a run which is asked to leave waits for its next regular checkpoint [s]."""
_LOOK_S = 0.001
_BYTES = 8


class Gate(ABC):
    """Decides where the op lists of a run end, before any reader passes that point.

    Micro-batches are numbered over the whole run.
    """

    @property
    @abstractmethod
    def end(self) -> int | None:
        """The micro-batch before which the lists end, or None if no end is decided."""

    @abstractmethod
    def reach(self, microbatch: int) -> int | None:
        """Return the end for a reader that reaches `microbatch`, or None; wait for a decision on a proposed end."""


Reach: TypeAlias = Callable[[int], int | None]
"""As `Gate.reach`."""


def ending_early(
    lists: Schedule, begun: Callable[[], int], shorter: Callable[[int], Schedule], reach: Reach
) -> Schedule:
    """Return generated lists that switch to shorter lists if an early end is decided.

    Both lists are equal up to that end, so a reader can switch from one to the other at its position.

    Args:
        lists: Lists of a part of the run.
        begun: Returns the micro-batch of the run that is number 0 of `lists`.
        shorter: Makes lists of the given number of micro-batches.
        reach: Takes a micro-batch that a reader reaches; returns the micro-batch before which the lists end, or None.
    """
    rank_lists = [GeneratedOps(partial(_read, lists, rank, begun, shorter, reach)) for rank in range(lists.num_ranks)]
    return replace(lists, lists=tuple(rank_lists))


def _read(
    lists: Schedule, rank: int, begun: Callable[[], int], shorter: Callable[[int], Schedule], reach: Reach
) -> Iterator[Op]:
    first, farthest = begun(), -1
    for count, op in enumerate(lists.lists[rank]):
        for part in computes(op):
            if part.microbatch > farthest:
                farthest = part.microbatch
                end = reach(first + farthest)
                if end is not None and first < end < first + lists.num_microbatches:
                    yield from islice(shorter(end - first).lists[rank], count, None)
                    return
        yield op


@final
class LeaveRequest:
    """Decides when and where a run that is asked to leave is drained.

    Args:
        microbatches_per_step: Micro-batches of a step.
        every: Steps between two regular drains.
        begun: Steps done before this run began.
    """

    def __init__(self, microbatches_per_step: int, every: int, begun: int) -> None:
        self._per_step, self._every, self._begun = microbatches_per_step, every, begun
        self._asked_s: float | None = None

    def is_late(self, *, is_asked: bool) -> bool:
        """Return whether `GRACE_S` has passed since the request to leave."""
        if self._asked_s is None and is_asked:
            self._asked_s = time.monotonic()
        return self._asked_s is not None and time.monotonic() - self._asked_s >= GRACE_S

    def end_beyond(self, microbatch: int) -> int:
        """Return the end of the first step beyond a micro-batch, or of the next step if a regular drain falls there.

        A rank that is about to begin the part after a regular drain would not see that the part is empty.
        """
        steps = max(self._begun, microbatch // self._per_step) + 1
        return self._per_step * (steps + (steps % self._every == 0))


@final
class LocalGate(Gate):
    """The gate of a run with all ranks in this process.

    Args:
        request: Decides when and where the run is drained.
        is_asked: Returns whether the run is asked to leave.
    """

    def __init__(self, request: LeaveRequest, is_asked: Callable[[], bool]) -> None:
        self._request, self._is_asked = request, is_asked
        self._farthest = -1
        self._end: int | None = None

    @property
    def end(self) -> int | None:
        return self._end

    def reach(self, microbatch: int) -> int | None:
        if self._end is None and microbatch > self._farthest:
            self._farthest = microbatch
            if self._request.is_late(is_asked=self._is_asked()):
                self._end = self._request.end_beyond(microbatch)
        return self._end


class DrainAgreement(NamedTuple):
    """The state of the agreement on the end of the lists: micro-batches, 0 for none.

    Attributes:
        proposed: A reader that reaches it waits.
        decided: A reader that reaches it is at the end.
    """

    proposed: int = 0
    decided: int = 0

    def following(self, read: int, request: LeaveRequest) -> DrainAgreement:
        """Return the next state: a decision, or a later proposal.

        Args:
            read: The farthest micro-batch of readers that all know the proposal.
            request: Decides where lists may end.
        """
        if read < self.proposed:
            return self._replace(decided=self.proposed)
        missed = read - self.proposed if self.proposed else 0
        return self._replace(proposed=request.end_beyond(read + 2 * missed))


@final
class DrainPage(SharedPage):
    """The request to leave, the agreement, and how far each rank has read; the ranks and the launcher share it.

    Each number has one writer, except the request.
    """

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> DrainPage:
        """Return a page in a file, where all processes of this machine find it."""
        return cls._in_file(path, bytes((_FIRST_RANK + num_ranks) * _BYTES))

    def gate(self, number: int, is_asked: Callable[[], bool] = lambda: False) -> Gate:
        """Return the gate of the rank in process `number`.

        Args:
            number: Number of the process.
            is_asked: Returns whether the rank is asked to leave.
        """
        return _RankGate(self._cells, _FIRST_RANK + number, is_asked)

    def ask(self) -> None:
        """Ask the ranks to leave."""
        self._cells[_ASKED] = 1

    @property
    def is_asked(self) -> bool:
        """Whether any rank is asked to leave."""
        return bool(self._cells[_ASKED])

    @property
    def read(self) -> int:
        """The farthest micro-batch that a rank has read."""
        return max(self._cells[_FIRST_RANK:])

    @property
    def agreement(self) -> DrainAgreement:
        """The current state of the agreement, which all ranks read."""
        return DrainAgreement(self._cells[_PROPOSED], self._cells[_DECIDED])

    def write(self, agreement: DrainAgreement) -> None:
        """Let the ranks see another state of the agreement."""
        self._cells[_DECIDED] = agreement.decided
        self._cells[_PROPOSED] = agreement.proposed


_PROPOSED, _DECIDED, _ASKED, _FIRST_RANK = range(4)


@final
class _RankGate(Gate):
    def __init__(self, cells: memoryview, own: int, is_asked: Callable[[], bool]) -> None:
        self._cells, self._own, self._is_asked = cells, own, is_asked

    @property
    def end(self) -> int | None:
        return self._cells[_DECIDED] or None

    def reach(self, microbatch: int) -> int | None:
        cells = self._cells
        if microbatch > cells[self._own]:
            if self._is_asked():
                cells[_ASKED] = 1
            self._wait(microbatch)
            if not cells[_DECIDED]:
                cells[self._own] = microbatch
                self._wait(microbatch)  # a proposal made by then may have been made without seeing it
        return self.end

    def _wait(self, microbatch: int) -> None:
        cells = self._cells
        while 0 < cells[_PROPOSED] <= microbatch and not cells[_DECIDED]:
            time.sleep(_LOOK_S)
