"""Open reductions: the k-th Reduces of a group meet, such as the Reduces on all replicas of a stage.

A rank posts a Reduce and continues; the next Step of the stage waits for the end of the reduction. The k-th Reduces of
a group are over when all of them are posted. Each group has its own communicator. If a device runs all collectives in
the order of their posts, the collectives also wait for one another:

    apart     rank 0  0REDUCE 1REDUCE 0STEP 1STEP        both are over when they are posted
              rank 1  1REDUCE 0REDUCE 0STEP 1STEP

    ordered   0REDUCE of rank 1 is behind its 1REDUCE, which meets 1REDUCE of rank 0, which is behind 0REDUCE: a circle
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Group, Reduce, Step, Summed
from pipesched.schedules.semantics.communicators import ListPosition
from pipesched.schedules.semantics.meetings import MeetingKey, Meetings


def misplaced_sums(schedule: Schedule, content: Summed) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
    """Return the faults of a sum over stages that some Step of the lists waits for.

    A norm needs all stages. Tied weights need all replicas of the stages that sum them, and at least two stages.

    Returns:
        (rank, stage) of the Steps without the sum, and of the Reduces of the sum without such a Step; both are empty
        in lists without Steps or without the sum.
    """
    sums = {*schedule.summands.get(content, ())}
    stages = sorted({stage for _, stage in sums}) if content is Summed.TIED else range(schedule.num_stages)
    steps = {(rank, op.stage) for rank, row in enumerate(schedule.ops) for op in row if isinstance(op, Step)}
    if not sums or not steps:
        return (), ()
    is_alone = content is Summed.TIED and len(stages) == 1
    expected = {(rank, stage) for rank, stage in steps if stage in stages and not is_alone}
    return sorted(expected - sums), sorted(sums - expected)


@dataclass(slots=True, eq=False)
class _OpenReduction:
    """One unfinished reduction, and the places in the lists of its posts, by rank and stage."""

    group: Group
    places: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def ranks(self) -> set[int]:
        """The ranks that have posted it."""
        return {rank for rank, _ in self.places}


class OpenReductions:
    """The unfinished Reduces of all ranks.

    Args:
        summands: Rank and stage of each Reduce that meets others, by group.
        are_ordered: Whether a rank's reductions run one after the other.
    """

    def __init__(self, summands: Mapping[Group, Collection[tuple[int, int]]], *, are_ordered: bool) -> None:
        self._summands = summands
        self._are_ordered = are_ordered
        self._open: defaultdict[int, list[_OpenReduction]] = defaultdict(list)
        self._reductions: dict[MeetingKey, _OpenReduction] = {}
        self._meetings = Meetings()

    def post(self, place: ListPosition, op: Reduce) -> set[int]:
        """Post a Reduce; return the ranks of all reductions that are now over."""
        rank, index = place
        reduction = self._reductions.setdefault(self._meetings.come(rank, op), _OpenReduction(op.group))
        reduction.places[rank, op.stage] = index
        if reduction not in self._open[rank]:
            self._open[rank].append(reduction)
        ranks: set[int] = set()
        ending = [reduction]
        while ending:
            earliest = ending.pop()
            if not self._is_over(earliest):
                continue
            ranks.update(earliest.ranks)
            for member in earliest.ranks:
                self._open[member].remove(earliest)
                ending += self._open[member][:1]
        return ranks

    def is_waiting(self, rank: int, stage: int | None = None) -> bool:
        """Whether a reduction that `rank` has posted is unfinished: of `stage`, or of any stage if None."""
        return any(stage is None or (rank, stage) in reduction.places for reduction in self._open[rank])

    def held_by(self) -> dict[ListPosition, ListPosition]:
        """Return, for each unfinished Reduce, the Reduce of its rank that must finish first, often itself."""
        blockers: dict[ListPosition, ListPosition] = {}
        for rank, reductions in self._open.items():
            places = [
                [place for (member, _), place in waiting.places.items() if member == rank] for waiting in reductions
            ]
            for waiting in places:
                is_behind = self._are_ordered and waiting is not places[0]
                blockers |= {(rank, place): (rank, places[0][0] if is_behind else place) for place in waiting}
        return blockers

    def _is_over(self, reduction: _OpenReduction) -> bool:
        if len(reduction.places) < len(self._summands[reduction.group]):
            return False
        return not self._are_ordered or all(self._open[member][:1] == [reduction] for member in reduction.ranks)
