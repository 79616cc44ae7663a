"""One way to train: the common base of the tuner's settings and the planner's candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeVar

from pipesched.schedules.builders import find


class SearchCandidate(ABC):
    """A candidate of a search.

    Attributes:
        schedule: Name of the schedule in the catalogue, or the `OwnName` of a builder of a user's own.
        num_microbatches: M, of a batch.
        num_chunks: Stages per rank, or None if the schedule has a fixed number.
        recomputes: Whether every stage keeps only its input, and makes the rest again.
    """

    __slots__ = ()

    schedule: str
    num_microbatches: int
    num_chunks: int | None
    recomputes: bool

    @property
    @abstractmethod
    def order(self) -> SearchCandidate:
        """The part that determines its lists; candidates with the same lists share it."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether it steps without a flush."""
        return find(self.schedule).traits.is_asynchronous


CandidateT = TypeVar("CandidateT", bound=SearchCandidate)


def own_sources(candidates: Iterable[SearchCandidate]) -> tuple[str, ...]:
    """Return where the builders of a user's own among candidates are from, with the state of their files."""
    entries = map(find, dict.fromkeys(candidate.schedule for candidate in candidates))
    return tuple(sorted(entry.source for entry in entries if entry.is_own))
