"""Find the cheapest of many candidates, most of them by a lower bound of their cost alone.

    bound    3   4   5   7   9         the cheapest is evaluated, and put back under what it really costs
             ↓
             4   5   6*  7   9         and so on; what is at the top with its real cost (*) is the cheapest of all

So the ranking is that of an exhaustive search as far as it goes, and most candidates are never evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Generic, final

from pipesched.simulator.search.search_candidate import CandidateT
from pipesched.simulator.search.search_outcome import OutcomeT


@dataclass(frozen=True, order=True, slots=True)
class BoundedCandidate(Generic[CandidateT, OutcomeT]):
    """A candidate under the least that it can cost, or with an outcome under what it costs.

    Attributes:
        cost: Cost, in any unit.
        number: Number of the candidate: of equal costs, the lower number comes first.
        outcome: Outcome of the evaluation; None: `cost` is a bound.
        num_refined: How often the bound was raised.
    """

    cost: float
    number: int
    candidate: CandidateT = field(compare=False)
    outcome: OutcomeT | None = field(compare=False, default=None)
    num_refined: int = field(compare=False, default=0)


@final
class BestFirst(Generic[CandidateT, OutcomeT]):
    """Candidates that are waiting, the one of the least cost first.

    Args:
        candidates: All that there are.
        refine: Returns the candidate under a higher bound, or with its outcome; None if it cannot be taken.
    """

    def __init__(
        self,
        candidates: Iterable[BoundedCandidate[CandidateT, OutcomeT]],
        refine: Callable[[BoundedCandidate[CandidateT, OutcomeT]], BoundedCandidate[CandidateT, OutcomeT] | None],
    ) -> None:
        self._heap = list(candidates)
        self._refine = refine
        heapify(self._heap)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._heap)

    def __iter__(self) -> Iterator[BoundedCandidate[CandidateT, OutcomeT]]:
        """Yield the candidates that wait, in no order."""
        return iter(self._heap)

    def take(self) -> OutcomeT | None:
        """Take out the first one, and return its outcome; None, and it stays, if it has only a bound."""
        outcome = self._heap[0].outcome
        if outcome is not None:
            heappop(self._heap)
        return outcome

    def advance(self) -> None:
        """Refine the first one, which stays where it is until that is done: a search may be stopped meanwhile."""
        refined = self._refine(self._heap[0])
        if refined is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, refined)

    def ranked(self) -> Iterator[OutcomeT]:
        """Yield the outcomes, the cheapest first."""
        while self._heap:
            outcome = self.take()
            if outcome is None:
                self.advance()
            else:
                yield outcome
