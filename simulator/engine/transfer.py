"""A transfer under way in the network, and who waits for it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from simpy import Environment, Event


@dataclass(slots=True, eq=False)
class Flight:
    """A message, or a reduction; the times are None until they are known.

    Attributes:
        start_s: When its first byte leaves [s].
        end_s: When its last byte is there [s].
        known: Of those who wait before the end is known; None where nobody does: then no event is spent on it.
    """

    start_s: float | None = None
    end_s: float | None = None
    known: Event | None = None

    def set_end(self, end_s: float) -> None:
        """Say when it is over, to all who wait for that."""
        self.end_s = end_s
        if self.known is not None:
            self.known.succeed()

    def over(self, env: Environment, before_s: float = 0.0) -> Generator[Event, Any, None]:
        """Wait until it is over, or until so long before that."""
        if self.end_s is None:
            self.known = self.known or env.event()
            yield self.known
        assert self.end_s is not None
        if self.end_s - before_s > env.now:
            yield env.timeout(self.end_s - before_s - env.now)
