"""The times of one transfer in the network, and the event for those who wait until they are known."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from simpy import Environment, Event


@dataclass(slots=True, eq=False)
class TransferTimes:
    """When a message, or a reduction, starts and ends; each None until it is known.

    Attributes:
        start_s: When its first byte leaves [s].
        end_s: When its last byte is there [s].
        late_s: What is given beside the network: how much later it is over for who waits for it [s].
        known: Event for those who wait before the end is known; None where nobody does: then no event is spent on it.
    """

    start_s: float | None = None
    end_s: float | None = None
    late_s: float = 0.0
    known: Event | None = None

    def set_end(self, end_s: float) -> None:
        """Say when it is over, to all who wait for that."""
        self.end_s = end_s
        if self.known is not None:
            self.known.succeed()

    @property
    def over_s(self) -> float | None:
        """When it is over for who waits for it [s]; never before it has begun."""
        if self.end_s is None or self.late_s == 0:
            return self.end_s
        return max(self.start_s or 0.0, self.end_s + self.late_s)

    def over(self, env: Environment, before_s: float = 0.0) -> Generator[Event, Any, None]:
        """Wait until it is over, or until so long before that."""
        if self.end_s is None:
            self.known = self.known or env.event()
            yield self.known
        over_s = self.over_s
        assert over_s is not None
        if over_s - before_s > env.now:
            yield env.timeout(over_s - before_s - env.now)
