"""Open reductions: the k-th Reduce of a stage on one rank meets the k-th on every other replica.

A rank posts a Reduce and continues; the next Step of the stage waits for the end of the reduction. The k-th Reduces of
a stage on its replicas are over when all of them are posted. Each stage has its own communicator. If a device runs all
collectives in the order of their posts, the collectives also wait for one another:

    apart     rank 0  0REDUCE 1REDUCE 0STEP 1STEP        both are over when they are posted
              rank 1  1REDUCE 0REDUCE 0STEP 1STEP

    ordered   0REDUCE of rank 1 is behind its 1REDUCE, which meets 1REDUCE of rank 0, which is behind 0REDUCE: a circle
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pipesched.schedules.ops import Reduce
from pipesched.schedules.semantics.communicators import ListPosition
from pipesched.schedules.semantics.meetings import MeetingKey, Meetings


@dataclass(slots=True, eq=False)
class _OpenReduction:
    """One unfinished reduction, and its places in the lists of the ranks that have posted it."""

    stage: int
    places: dict[int, int] = field(default_factory=dict)


class OpenReductions:
    """The unfinished Reduces of all ranks.

    Args:
        replicas: The ranks that reduce each stage.
        are_ordered: Whether a rank's reductions run one after the other.
    """

    def __init__(self, replicas: Mapping[int, Collection[int]], *, are_ordered: bool) -> None:
        self._replicas = replicas
        self._are_ordered = are_ordered
        self._open: defaultdict[int, list[_OpenReduction]] = defaultdict(list)
        self._reductions: dict[MeetingKey, _OpenReduction] = {}
        self._meetings = Meetings()

    def post(self, place: ListPosition, op: Reduce) -> set[int]:
        """Post a Reduce; return the ranks of all reductions that are now over."""
        rank, index = place
        reduction = self._reductions.setdefault(self._meetings.come(rank, op), _OpenReduction(op.stage))
        reduction.places[rank] = index
        self._open[rank].append(reduction)
        ranks: set[int] = set()
        ending = [reduction]
        while ending:
            earliest = ending.pop()
            if not self._is_over(earliest):
                continue
            ranks.update(earliest.places)
            for member in earliest.places:
                self._open[member].remove(earliest)
                ending += self._open[member][:1]
        return ranks

    def is_waiting(self, rank: int, stage: int | None = None) -> bool:
        """Whether a reduction that `rank` has posted is unfinished: of `stage`, or of any stage if None."""
        return any(stage is None or reduction.stage == stage for reduction in self._open[rank])

    def held_by(self) -> dict[ListPosition, ListPosition]:
        """Return, for each unfinished Reduce, the Reduce of its rank that must finish first, often itself."""
        blockers: dict[ListPosition, ListPosition] = {}
        for rank, reductions in self._open.items():
            for waiting in reductions:
                first = reductions[0] if self._are_ordered else waiting
                blockers[rank, waiting.places[rank]] = (rank, first.places[rank])
        return blockers

    def _is_over(self, reduction: _OpenReduction) -> bool:
        if len(reduction.places) < len(self._replicas[reduction.stage]):
            return False
        return not self._are_ordered or all(self._open[member][:1] == [reduction] for member in reduction.places)
