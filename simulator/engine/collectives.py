"""The all-reduces of a simulation: who takes part in each, and when it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias, final

from pipesched.simulator.engine.transfer import Flight

Begin: TypeAlias = Callable[[Flight, int], None]
"""Start the reduction of a stage, whose replicas are all there."""


@final
class Collectives:
    """The k-th Reduces of a stage belong together; the reduction starts when the last of its replicas has posted it."""

    def __init__(self, members: Mapping[int, Collection[int]], begin: Begin) -> None:
        self._members = members
        self._begin = begin
        self._num_posted: Counter[tuple[int, int]] = Counter()
        self._absent: dict[tuple[int, int], set[int]] = {}
        self._flights: dict[tuple[int, int], Flight] = {}

    def post(self, rank: int, stage: int) -> Flight:
        """Post a rank's side; never waits."""
        key = (stage, self._num_posted[rank, stage])
        self._num_posted[rank, stage] += 1
        flight = self._flights.setdefault(key, Flight())
        absent = self._absent.setdefault(key, set(self._members[stage]))
        absent.discard(rank)
        if not absent:
            del self._flights[key], self._absent[key]
            self._begin(flight, stage)
        return flight

    def absent(self, flight: Flight) -> tuple[int, ...]:
        """Return the ranks that a reduction still waits for."""
        return next((tuple(sorted(self._absent[key])) for key, one in self._flights.items() if one is flight), ())
