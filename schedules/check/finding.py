"""One fault of a schedule, with its place."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.schedules.semantics import Deadlock


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of op lists: its place, the actual and the expected ops.

    Attributes:
        kind: ``structure``, ``version``, ``matching`` or ``progress``.
        rank: Rank of the fault, or None if an op is missing on all ranks.
        index: Position in the rank's list, from 0, or None for a fault without a single place.
        text: The actual and the expected ops.
        deadlock: The blocked ops and the reasons, for ``progress`` only.
    """

    kind: str
    rank: int | None
    index: int | None
    text: str
    deadlock: Deadlock | None = None

    def __str__(self) -> str:
        place = "" if self.rank is None else f"rank {self.rank}" + ("" if self.index is None else f" op {self.index}")
        return f"{place}: {self.text}" if place else self.text

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The (rank, index) of every op of the fault."""
        if self.deadlock is not None:
            return tuple((link.rank, link.index) for link in self.deadlock.links)
        return () if self.rank is None or self.index is None else ((self.rank, self.index),)
