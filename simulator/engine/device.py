"""A simulated device: the resources of an op while it runs, alone or beside the ops of other ranks.

Ranks on one device share its processor by utilisation: while the utilisations of the running ops add up to at most
1 no op is slowed, above it all are slowed in proportion (as in AvgPipe's Eq. 2, PPoPP 2023). Two ops of 1 s
and utilisation 0.75 each, the second 0.5 s after the first:

    first   ══════════▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                        ══ at full speed
    second            ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒══════════              ▒▒ slowed by 1.5
            0         0.5            1.25      1.75 s
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import final

from simpy import Environment, Event

from pipesched.profiles.clusters import Cluster


class SimulatedDevice(ABC):
    """A device of the simulation: it runs ops, for the seconds of their costs, slowed by simultaneous ops."""

    @abstractmethod
    def run(self, seconds: float, utilisation: float) -> Event:
        """Start an op of `seconds` seconds at speed 1 and this utilisation; the event fires when it is over."""

    @abstractmethod
    def begin_transfer(self) -> None:
        """Be slowed by a message or a reduction that starts."""

    @abstractmethod
    def end_transfer(self) -> None:
        """Stop being slowed by one of these messages or reductions."""


@final
class OwnDevice(SimulatedDevice):
    """A device of one rank, which no other rank slows."""

    def __init__(self, env: Environment, speed: float) -> None:
        self._env = env
        self._speed = speed

    def run(self, seconds: float, utilisation: float) -> Event:  # noqa: ARG002 -- there is nobody else
        return self._env.timeout(seconds / self._speed)

    def begin_transfer(self) -> None:
        """Do nothing: a device alone is not slowed by messages."""

    def end_transfer(self) -> None:
        """Do nothing: a device alone is not slowed by messages."""


@final
class SharedDevice(SimulatedDevice):
    """A device that several ranks share, by exact processor sharing, or that messages slow down.

    All running ops are slowed alike, so one clock serves them all: *virtual* seconds pass at the common rate, and an
    op is over when its own seconds have passed on that clock. Only the first to end needs an alarm, and only the
    newest alarm counts: every start and every end changes the rate.

    Args:
        env: Clock of the simulation.
        speed: Seconds are divided by it.
        slowdown: Ops take 1 + `slowdown` times as long while a message or reduction of the device is in flight.
    """

    def __init__(self, env: Environment, speed: float, slowdown: float = 0.0) -> None:
        self._env = env
        self._speed = speed
        self._slowdown = slowdown
        self._num_transfers = 0
        self._virtual_s = 0.0
        self._read_s = 0.0  # when the virtual clock was last read
        self._rate = 1.0  # virtual seconds per second
        self._running: list[tuple[float, int, float, Event]] = []  # heap: virtual end, order of start, utilisation
        self._starts = count()
        self._alarm: Event | None = None

    def run(self, seconds: float, utilisation: float) -> Event:
        self._read()
        over = self._env.event()
        heappush(self._running, (self._virtual_s + seconds / self._speed, next(self._starts), utilisation, over))
        self._set_alarm()
        return over

    def begin_transfer(self) -> None:
        self._count_transfers(1)

    def end_transfer(self) -> None:
        self._count_transfers(-1)

    def _count_transfers(self, more: int) -> None:
        self._read()
        self._num_transfers += more
        if self._running:
            self._set_alarm()

    def _read(self) -> None:
        self._virtual_s += (self._env.now - self._read_s) * self._rate
        self._read_s = self._env.now

    def _set_alarm(self) -> None:
        self._read_s = self._env.now
        self._rate = 1.0 / max(1.0, math.fsum(utilisation for _, _, utilisation, _ in self._running))
        if self._num_transfers:
            self._rate /= 1.0 + self._slowdown
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


def simulated_devices(
    env: Environment, cluster: Cluster, rank_to_device: Sequence[int], slowdown: float
) -> dict[int, SimulatedDevice]:
    """Return the devices that have ranks, by number; only messages slow a device with a single rank."""
    devices: dict[int, SimulatedDevice] = {}
    for device, num_ranks in Counter(rank_to_device).items():
        speed = cluster.devices[device].speed
        is_even = num_ranks == 1 and not slowdown
        devices[device] = OwnDevice(env, speed) if is_even else SharedDevice(env, speed, slowdown)
    return devices
