"""The early drain of a training run without a flush: told to leave, it need not go on to its next checkpoint.

Its lists then end before a micro-batch that nobody who reads them has come to: each rank, ahead of what it does, and
those that it sends to. In one process that is known. Else the launcher, or the guard of rank 0, proposes one, and
decides on it if all are behind it still when they have seen it::

    launcher   proposes 12 ......... all are behind it: decides
    rank 0     8  9  10  11  waits ............................ ends as lists of 12 micro-batches do
    rank 1        8   9  10  11  waits ........................ ends
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, final

from pipesched.executor.launch.shared_page import SharedPage
from pipesched.schedules import GeneratedOps, Op, Schedule, computes

GRACE_S = 10.0
"""How long a run that is told to leave goes on to a checkpoint that comes by itself [s]."""
_LOOK_S = 0.001
_BYTES = 8


class Gate(ABC):
    """The place that says where the lists of a run end, before anybody has read beyond that.

    Micro-batches are those of the run.
    """

    @property
    @abstractmethod
    def end(self) -> int | None:
        """The micro-batch before which the lists end; None: none is known."""

    @abstractmethod
    def reach(self, microbatch: int) -> int | None:
        """Return the end, for a reader that comes to a micro-batch; where one is proposed, wait for the decision."""


def ending_early(lists: Schedule, begun: Callable[[], int], shorter: Callable[[int], Schedule], gate: Gate) -> Schedule:
    """Return generated lists that go on as shorter ones do where the gate says that they end early.

    Up to that end both are the same, so whoever has read one has read the other.

    Args:
        lists: Lists of a part of the run.
        begun: Returns the micro-batch of the run that is number 0 of them.
        shorter: Makes lists of so many micro-batches instead.
        gate: Says where they end.
    """
    rank_lists = [GeneratedOps(partial(_read, lists, rank, begun, shorter, gate)) for rank in range(lists.num_ranks)]
    return replace(lists, lists=tuple(rank_lists))


def _read(
    lists: Schedule, rank: int, begun: Callable[[], int], shorter: Callable[[int], Schedule], gate: Gate
) -> Iterator[Op]:
    first, farthest = begun(), -1
    for count, op in enumerate(lists.lists[rank]):
        for part in computes(op):
            if part.microbatch > farthest:
                farthest = part.microbatch
                end = gate.reach(first + farthest)
                if end is not None and first < end < first + lists.num_microbatches:
                    yield from islice(shorter(end - first).lists[rank], count, None)
                    return
        yield op


@final
class ReadOnlyGate(Gate):
    """The gate of a reader that runs nothing: it waits for no decision, and no decision waits for it.

    Args:
        gate: The gate of who runs them.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def end(self) -> int | None:
        return self._gate.end

    def reach(self, microbatch: int) -> int | None:  # noqa: ARG002
        return self.end


@final
class LeaveRequest:
    """Says how soon a run that is told to leave is drained, and where.

    Args:
        microbatches_per_step: Micro-batches of a step.
        every: Steps from one drain that comes by itself to the next.
        begun: The steps that the run has begun with.
    """

    def __init__(self, microbatches_per_step: int, every: int, begun: int) -> None:
        self._per_step, self._every, self._begun = microbatches_per_step, every, begun
        self._asked_s: float | None = None

    def is_late(self, *, is_asked: bool) -> bool:
        """Return whether it was told so long ago that the next checkpoint is not waited for."""
        if self._asked_s is None and is_asked:
            self._asked_s = time.monotonic()
        return self._asked_s is not None and time.monotonic() - self._asked_s >= GRACE_S

    def end_beyond(self, microbatch: int) -> int:
        """Return the end of the first step beyond a micro-batch; of the next one, where a part ends there by itself.

        Ranks that are about to begin the part behind that would not see that it is to be none.
        """
        steps = max(self._begun, microbatch // self._per_step) + 1
        return self._per_step * (steps + (steps % self._every == 0))


@final
class LocalGate(Gate):
    """The gate where all ranks are in this process.

    Args:
        request: Says how soon the run is drained.
        is_asked: Returns whether it is told to leave.
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
    """The state of the agreement on where lists end: micro-batches, 0 for none.

    Attributes:
        proposed: A reader that comes to it waits.
        decided: A reader that comes to it is at the end.
    """

    proposed: int = 0
    decided: int = 0

    def following(self, read: int, request: LeaveRequest) -> DrainAgreement:
        """Return the state that follows: a decision, or a proposal further on.

        Args:
            read: How far the lists have been read, by readers that all know the proposal.
            request: Says where lists may end.
        """
        if read < self.proposed:
            return self._replace(decided=self.proposed)
        missed = read - self.proposed if self.proposed else 0
        return self._replace(proposed=request.end_beyond(read + 2 * missed))


@final
class DrainPage(SharedPage):
    """The agreement, and how far each rank has read, shared by the ranks and the process that decides.

    Each number is written by one process.
    """

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> DrainPage:
        """Return a page in a file, where all processes of this machine find it."""
        return cls._in_file(path, bytes((_FIRST_RANK + num_ranks) * _BYTES))

    @classmethod
    def of_one(cls) -> DrainPage:
        """Return a page without a name for one rank, which this process shares with those that it forks."""
        return cls._without_name(bytes((_FIRST_RANK + 1) * _BYTES))

    def gate(self, number: int, is_asked: Callable[[], bool] = lambda: False) -> Gate:
        """Return the gate of the rank in the process of this number.

        Args:
            number: Of the process.
            is_asked: Returns whether the rank is told that the run is to leave.
        """
        return _RankGate(self._cells, _FIRST_RANK + number, is_asked)

    @property
    def is_asked(self) -> bool:
        """Whether a rank was told that the run is to leave."""
        return bool(self._cells[_ASKED])

    @property
    def read(self) -> int:
        """How far ranks have read."""
        return max(self._cells[_FIRST_RANK:])

    @property
    def agreement(self) -> DrainAgreement:
        """The agreement as the ranks see it."""
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
