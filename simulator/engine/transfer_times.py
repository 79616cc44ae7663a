"""The times of one transfer in the network, and the events for its waiters."""

from __future__ import annotations

from dataclasses import dataclass

from simpy import Environment, Event


@dataclass(slots=True, eq=False)
class TransferTimes:
    """When a message, or a reduction, starts and ends; each None until it is known.

    Attributes:
        start_s: When its first byte leaves [s].
        end_s: When its last byte is there [s].
        late_s: Given delay beside the network: how much later it is over for its waiters [s].
        waits: The events of waiters before the end is known, and how long before the end each continues [s]; None
            without waiters: then no event is spent on it.
    """

    start_s: float | None = None
    end_s: float | None = None
    late_s: float = 0.0
    waits: list[tuple[Event, float]] | None = None

    def set_end(self, env: Environment, end_s: float) -> None:
        """Set the end; its waiters continue then."""
        self.end_s = end_s
        for wait, before_s in self.waits or ():
            over = env.timeout(max(0.0, self._over_s(end_s) - before_s - env.now))
            over.callbacks.extend(wait.callbacks or ())

    @property
    def over_s(self) -> float | None:
        """When the transfer ends for its waiters [s], never before its start; None if unknown yet."""
        return None if self.end_s is None else self._over_s(self.end_s)

    def over(self, env: Environment, before_s: float = 0.0) -> Event | None:
        """Return the event that it is over, or `before_s` before that; None if that has passed already."""
        if self.end_s is None:
            wait = env.event()
            self.waits = [*(self.waits or ()), (wait, before_s)]
            return wait
        left_s = self._over_s(self.end_s) - before_s - env.now
        return env.timeout(left_s) if left_s > 0 else None

    def _over_s(self, end_s: float) -> float:
        return max(self.start_s or 0.0, end_s + self.late_s) if self.late_s else end_s
