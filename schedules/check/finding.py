"""One fault of a schedule, with its place."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.schedules.semantics import Deadlock


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of op lists: where it is, and what was got and expected there.

    Attributes:
        kind: ``structure``, ``version``, ``matching`` or ``progress``.
        rank: Where; None for what is missing everywhere.
        index: Position in the rank's list, from 0; None when the fault has no single place.
        text: What was got and what was expected.
        deadlock: What stands still, and why; for ``progress`` only.
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
        """The (rank, index) of every op that has a part in it."""
        if self.deadlock is not None:
            return tuple((link.rank, link.index) for link in self.deadlock.links)
        return () if self.rank is None or self.index is None else ((self.rank, self.index),)
