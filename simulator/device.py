"""A device: what an op occupies while it runs, alone or beside the ops of other ranks.

Ranks on one device share its processor by utilisation: while the utilisations of the running ops add up to at most
1 nobody is slowed, above it all are slowed in proportion (what AvgPipe's Eq. 2 assumes, PPoPP 2023). Two ops of 1 s
and utilisation 0.75 each, the second 0.5 s after the first:

    first   ══════════▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                        ══ at full speed
    second            ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒══════════              ▒▒ slowed by 1.5
            0         0.5            1.25      1.75 s
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias, final

from simpy import Environment, Event

RunOp: TypeAlias = Callable[[float, float], Event]
"""Start an op of so many seconds (at speed 1) and this utilisation; the event says that it is over."""


def own_device(env: Environment, speed: float) -> RunOp:
    """Return how a rank with a device of its own runs an op: nobody slows it."""
    return lambda seconds, _: env.timeout(seconds / speed)


@final
class SharedDevice:
    """A device of several ranks: exact processor sharing.

    All running ops are slowed alike, so one clock serves them all: *virtual* seconds pass at the common rate, and an
    op is over when its own seconds have passed on that clock. Only the first to end needs an alarm, and only the
    newest alarm counts: every start and every end changes the rate.
    """

    def __init__(self, env: Environment, speed: float) -> None:
        self._env = env
        self._speed = speed
        self._virtual_s = 0.0
        self._read_s = 0.0  # when the virtual clock was last read
        self._rate = 1.0  # virtual seconds per second
        self._running: list[tuple[float, int, float, Event]] = []  # heap: virtual end, order of start, utilisation
        self._starts = count()
        self._alarm: Event | None = None

    def run(self, seconds: float, utilisation: float) -> Event:
        """Start an op; the event returned says that it is over."""
        self._virtual_s += (self._env.now - self._read_s) * self._rate
        over = self._env.event()
        heappush(self._running, (self._virtual_s + seconds / self._speed, next(self._starts), utilisation, over))
        self._set_alarm()
        return over

    def _set_alarm(self) -> None:
        self._read_s = self._env.now
        self._rate = 1.0 / max(1.0, math.fsum(utilisation for _, _, utilisation, _ in self._running))
        left_s = max(0.0, self._running[0][0] - self._virtual_s)
        self._alarm = self._env.timeout(left_s / self._rate)
        self._alarm.callbacks.append(self._end_first)

    def _end_first(self, alarm: Event) -> None:
        if alarm is not self._alarm:
            return
        self._virtual_s = self._running[0][0]  # and not one rounding beside it
        while self._running and self._running[0][0] <= self._virtual_s:
            heappop(self._running)[3].succeed()
        if self._running:
            self._set_alarm()
        else:
            self._virtual_s, self._read_s = 0.0, self._env.now
