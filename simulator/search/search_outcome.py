"""The outcome of a search for one way to train: its predicted time and memory, or the reason of its refusal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeVar

from pipesched.profiles import ProfileError
from pipesched.schedules import ScheduleError
from pipesched.simulator import SimulationError

UNPREDICTABLE = (ScheduleError, ProfileError, SimulationError)
"""Errors of an evaluator for a way to train that is impossible or unpredictable; the text is the reason."""


class SearchOutcome(ABC):
    """One way to train, predicted or refused.

    Attributes:
        seconds: Its time, or None if unpredictable.
        reason: Why it cannot be taken, or None.
    """

    __slots__ = ()

    seconds: float | None
    reason: str | None

    @property
    @abstractmethod
    def most_bytes(self) -> int | None:
        """The bytes of the device that holds most; None where nothing could be predicted."""

    @property
    def fits(self) -> bool:
        """Whether it can be taken."""
        return self.reason is None


OutcomeT = TypeVar("OutcomeT", bound=SearchOutcome)


def over_memory_reason(over: object | None) -> str | None:
    """Return the reason to refuse a way to train that exceeds memory, or None if it fits."""
    return None if over is None else f"over memory: {over}"


def least(outcomes: Iterable[OutcomeT]) -> OutcomeT | None:
    """Return the known outcome with the least memory, of equal ones the fastest, or None."""
    known = [outcome for outcome in outcomes if outcome.seconds is not None and outcome.most_bytes is not None]
    return min(known, key=lambda outcome: (outcome.most_bytes, outcome.seconds), default=None)
