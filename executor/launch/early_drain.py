"""The early drain of a training run without a flush: told to leave, it need not go on to its next checkpoint.

Its lists then end before a micro-batch that nobody who reads them has come to: each rank, ahead of what it does, and
those that it sends to. In one process that is known. Else the launcher, or the guard of rank 0, proposes one, and
decides on it if all are behind it still when they have seen it::

    launcher   proposes 12 ......... all are behind it: decides
    rank 0     8  9  10  11  waits ............................ ends as lists of 12 micro-batches do
    rank 1        8   9  10  11  waits ........................ ends
"""

from __future__ import annotations

import mmap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import final

from pipesched.schedules import GeneratedOps, Op, Schedule, computes

GRACE_S = 10.0
"""How long a run that is told to leave goes on to a checkpoint that comes by itself [s]."""
_LOOK_S = 0.001
_BYTES = 8


class Gate(ABC):
    """Says where the lists of a run end, before anybody reads beyond that; micro-batches are those of the run."""

    @property
    @abstractmethod
    def end(self) -> int | None:
        """The micro-batch before which they end; None: none is known."""

    @abstractmethod
    def reach(self, microbatch: int) -> int | None:
        """Return the same for a reader who comes to a micro-batch; where somebody is about to say so, wait for it."""


def ending_early(lists: Schedule, begun: Callable[[], int], shorter: Callable[[int], Schedule], gate: Gate) -> Schedule:
    """Return generated lists that go on as shorter ones do where the gate says that they end early.

    Up to that end both are the same, so whoever has read one has read the other.

    Args:
        lists: Lists of a part of the run.
        begun: Returns the micro-batch of the run that is number 0 of them.
        shorter: Makes lists of so many micro-batches less.
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
class Onlooker(Gate):
    """The gate of who reads lists only to see what is in them, and so is not waited for."""

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

    def end_beyond(self, microbatch: int, num_more: int = 0) -> int:
        """Return the end of the first step beyond a micro-batch, or so many later, that ends no part by itself."""
        steps = max(self._begun, microbatch // self._per_step) + 1 + num_more
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


class DrainTalk(NamedTuple):
    """What is said of where lists end: micro-batches, 0 for none.

    Attributes:
        proposed: What is proposed.
        decided: What is decided.
    """

    proposed: int = 0
    decided: int = 0

    def answer(self, read: int, request: LeaveRequest) -> DrainTalk:
        """Return what is said next, where all have seen what is proposed, and have read so far."""
        if read < self.proposed:  # who has come to it since waits
            return self._replace(decided=self.proposed)
        more = 0 if not self.proposed else 
        return self._replace(proposed=request.end_beyond(read))
