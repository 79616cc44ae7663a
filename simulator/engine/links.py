"""The links and shared NICs of a simulation: the users of each, and the waiting messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

from pipesched.profiles.clusters import Cluster, Link


@dataclass(slots=True, eq=False)
class LinkQueue:
    """A link, or one direction of a shared NIC, and the time when it is free again [s]."""

    free_s: float = 0.0


@dataclass(slots=True, eq=False)
class Wire:
    """The link and NICs that a message from one device to another needs at once.

    Attributes:
        ways: The link first, then the NICs that it crosses.
        is_shared: Whether several ranks use the link at once and divide its bandwidth; otherwise one message goes
            after the other.
    """

    link: Link
    ways: tuple[LinkQueue, ...]
    is_shared: bool = False

    @property
    def crosses_nic(self) -> bool:
        """Whether messages between other devices can delay this message: they share a NIC."""
        return len(self.ways) > 1


@final
class Wires:
    """The wires of a cluster, made on first use."""

    def __init__(self, cluster: Cluster, rank_to_device: Sequence[int]) -> None:
        self._cluster = cluster
        self._num_ranks = Counter(rank_to_device)
        self._wires: dict[tuple[int, int], Wire] = {}
        self._nics: defaultdict[tuple[str, int], LinkQueue] = defaultdict(LinkQueue)

    def between(self, source: int, target: int) -> Wire:
        """Return the wire from one device to another."""
        ends = (source, target)
        if ends not in self._wires:
            out, into = self._cluster.nics_between(source, target)
            nics = [self._nics[side, nic] for side, nic in (("out", out), ("in", into)) if nic is not None]
            is_shared = not nics and max(self._num_ranks[device] for device in ends) > 1
            self._wires[ends] = Wire(self._cluster.link(source, target), (LinkQueue(), *nics), is_shared)
        return self._wires[ends]


def occupy(ways: Collection[LinkQueue], now_s: float, seconds: float) -> float:
    """Occupy all ways for `seconds`, as soon as they are free; return the start [s]."""
    start_s = now_s
    for way in ways:
        if way.free_s > start_s:
            start_s = way.free_s
    for way in ways:
        way.free_s = start_s + seconds
    return start_s
