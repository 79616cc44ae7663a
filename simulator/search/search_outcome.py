"""The outcome of a search for one way to train: its predicted time and memory, or why there is none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeVar

from pipesched.profiles import ProfileError
from pipesched.schedules import ScheduleError
from pipesched.simulator import SimulationError

UNPREDICTABLE = (ScheduleError, ProfileError, SimulationError)
"""What an evaluator raises of a way to train that cannot be, or cannot be predicted; its text is the reason."""


class SearchOutcome(ABC):
    """One way to train, predicted or refused.

    Attributes:
        seconds: What it takes; None where nothing could be predicted.
        reason: Why it cannot be taken; None if it can.
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
    """Return the reason to refuse what holds more than a device has, and how; None where nothing does."""
    return None if over is None else f"over memory: {over}"


def least(outcomes: Iterable[OutcomeT]) -> OutcomeT | None:
    """Return what needs the least memory, of equal ones the fastest; None if of none is anything known."""
    known = [outcome for outcome in outcomes if outcome.seconds is not None and outcome.most_bytes is not None]
    return min(known, key=lambda outcome: (outcome.most_bytes, outcome.seconds), default=None)
