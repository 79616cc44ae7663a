"""Find the cheapest of many candidates; most candidates need only a lower bound of their cost.

    bound    3   4   5   7   9         the cheapest is refined: put back under a higher bound, or its real cost
             ↓
             4   5   6*  7   9         and so on; a candidate at the top with its real cost (*) is the cheapest of all

So the ranking equals the top of an exhaustive ranking, although most candidates are never evaluated. Several workers
refine the next cheapest candidates at the same time. They refine more candidates than one worker; the ranking is the
same.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar, final

from pipesched.simulator.search.outcome import Outcome
from pipesched.simulator.search.runners import Runner
from pipesched.simulator.search.setting import Setting

CostT = TypeVar("CostT")


@dataclass(frozen=True, order=True, slots=True)
class BoundedSetting(Generic[CostT]):
    """A candidate under a lower bound of its cost, or with an outcome under its real cost.

    Attributes:
        cost: Cost, a number in any unit or a tuple to compare; inf if it cannot be taken.
        number: Number of the candidate: of equal costs, the lower number comes first.
        outcome: Outcome of the evaluation, or None if `cost` is a bound.
        num_refined: Number of times that the bound was raised.
    """

    cost: CostT
    number: int
    setting: Setting = field(compare=False)
    outcome: Outcome | None = field(compare=False, default=None)
    num_refined: int = field(compare=False, default=0)


@final
class BestFirst(Generic[CostT]):
    """Refines candidates in the order of their bounds, until the best `top` candidates have outcomes.

    Args:
        candidates: All candidates, each with a number of its own.
        top: Number of candidates to rank.
    """

    def __init__(self, candidates: Iterable[BoundedSetting[CostT]], top: int) -> None:
        self._waiting: list[BoundedSetting[CostT]] = []
        self._under_way: dict[int, BoundedSetting[CostT]] = {}
        self._known: list[BoundedSetting[CostT]] = []
        self._refined: list[tuple[BoundedSetting[CostT], BoundedSetting[CostT]]] = []  # before and after
        self._top = top
        for bounded in candidates:
            (self._waiting if bounded.outcome is None else self._known).append(bounded)
        heapify(self._waiting)
        self._known.sort()

    @property
    def ranked(self) -> tuple[Outcome, ...]:
        """The best known outcomes, the cheapest first, at most `top` of them."""
        return tuple(bounded.outcome for bounded in self._known[: self._top] if bounded.outcome is not None)

    @property
    def refined(self) -> tuple[BoundedSetting[CostT], ...]:
        """The refined candidates that one worker would have refined too: their bounds were below the ranking."""
        last = self._known[self._top - 1] if len(self._known) >= self._top else None
        return tuple(after for before, after in self._refined if last is None or before <= last)

    @property
    def open_bounds(self) -> Iterator[CostT]:
        """The bounds of the candidates without an outcome, in no order."""
        return (bounded.cost for bounded in (*self._waiting, *self._under_way.values()))

    @property
    def is_settled(self) -> bool:
        """Whether no other candidate can come into the ranking."""
        return not self._under_way and not self._may_rank()

    def refine(
        self,
        judge: Callable[[BoundedSetting[CostT]], BoundedSetting[CostT]],
        run: Runner,
        is_late: Callable[[], bool] = lambda: False,
    ) -> Iterator[BoundedSetting[CostT]]:
        """Refine candidates until all is settled, and yield each result.

        A search that is stopped meanwhile loses no candidate.

        Args:
            judge: Returns a candidate under a higher bound, or with its outcome; can be sent to another process.
            run: Calls `judge` on candidates, in this process or in others.
            is_late: Whether no other candidate shall be begun.
        """
        for bounded in run(judge, lambda: () if is_late() else self._take()):
            self._refined.append((self._under_way.pop(bounded.number), bounded))
            if bounded.outcome is None:
                heappush(self._waiting, bounded)
            elif bounded.cost != math.inf:
                insort(self._known, bounded)
            yield bounded

    def _take(self) -> Sequence[BoundedSetting[CostT]]:
        """Take out the candidate with the least bound; nothing if no waiting candidate can enter the ranking."""
        if not self._may_rank():
            return ()
        bounded = heappop(self._waiting)
        self._under_way[bounded.number] = bounded
        return (bounded,)

    def _may_rank(self) -> bool:
        """Whether a waiting candidate may still enter the ranking."""
        return bool(self._waiting) and (len(self._known) < self._top or self._waiting[0] < self._known[self._top - 1])
