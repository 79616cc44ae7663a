"""The outcome of a search for one way to train: its predicted time and memory, or the reason of its refusal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.schedules import ScheduleError
from pipesched.simulator import SimulationError

UNPREDICTABLE = (ScheduleError, ProfileError, SimulationError)
"""Errors of an evaluator for a way to train that is impossible or unpredictable; the text is the reason."""


class SearchOutcome(ABC):
    """One way to train, predicted or refused.

    Attributes:
        seconds: Predicted time of the candidate [s], or None without a prediction.
        reason: Why the candidate is refused, or None.
    """

    __slots__ = ()

    seconds: float | None
    reason: str | None

    @property
    @abstractmethod
    def most_bytes(self) -> int | None:
        """The largest peak memory of a device [bytes], or None without a prediction."""

    @property
    def fits(self) -> bool:
        """Whether it can be taken."""
        return self.reason is None


OutcomeT = TypeVar("OutcomeT", bound=SearchOutcome)


def memory_excess(held_bytes: Mapping[int, float], cluster: Cluster, *, at_least: bool = False) -> str | None:
    """Return the first device that holds more than its memory, and its bytes, or None if all have room.

    Args:
        held_bytes: Peak memory by device [bytes].
        cluster: Devices with their memory.
        at_least: Whether the bytes are lower bounds.
    """
    for device, num_bytes in sorted(held_bytes.items()):
        limit = cluster.devices[device].memory_bytes
        if limit is not None and num_bytes > limit:
            return f"device {device} holds {'at least ' * at_least}{round(num_bytes)} bytes of {limit}"
    return None


def over_memory_reason(over: object | None) -> str | None:
    """Return the reason to refuse a way to train that exceeds memory, or None if it fits."""
    return None if over is None else f"over memory: {over}"


def least(outcomes: Iterable[OutcomeT]) -> OutcomeT | None:
    """Return the known outcome with the least memory, of equal ones the fastest, or None."""
    known = [outcome for outcome in outcomes if outcome.seconds is not None and outcome.most_bytes is not None]
    return min(known, key=lambda outcome: (outcome.most_bytes, outcome.seconds), default=None)


def front_of(ordered: Iterable[OutcomeT]) -> tuple[OutcomeT, ...]:
    """Return the Pareto front of outcomes in order of cost: each fitting outcome with less memory than all before it.

    Outcomes of unknown memory are left out.
    """
    front: list[OutcomeT] = []
    for outcome in ordered:
        num_bytes = outcome.most_bytes if outcome.fits else None
        if num_bytes is not None and (not front or num_bytes < (front[-1].most_bytes or 0)):
            front.append(outcome)
    return tuple(front)
