"""The machines: devices, and the links between them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A directed connection: a message occupies it for bytes / bandwidth, then travels for the latency."""

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = math.inf

    def occupied_s(self, num_bytes: int) -> float:
        """Return how long a message keeps the next one waiting [s]."""
        return num_bytes / self.bandwidth_bytes_per_s

    def transfer_s(self, num_bytes: int) -> float:
        """Return the time from the first byte sent to the last byte there [s]."""
        return self.occupied_s(num_bytes) + self.latency_s


@dataclass(frozen=True, slots=True)
class Device:
    """What runs ops.

    Attributes:
        speed: Seconds of a profile are divided by this: 0.5 is a straggler at half speed.
        memory_bytes: Capacity; None when not limited.
        node: The machine it is in.
    """

    speed: float = 1.0
    memory_bytes: int | None = None
    node: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and links.

    Attributes:
        devices: ``devices[d]`` is device ``d``.
        intra: The link between two devices of one node.
        inter: The link between devices of different nodes; None: as `intra`.
        loopback: The link of a device to itself, for ranks that share it.
        links: Exceptions, as (from device, to device, link).
        origin: Where the numbers come from, in a few words.
    """

    devices: tuple[Device, ...]
    intra: Link = Link()
    inter: Link | None = None
    loopback: Link = Link()
    links: tuple[tuple[int, int, Link], ...] = ()
    origin: str = ""

    def link(self, source: int, target: int) -> Link:
        """Return the link from one device to another."""
        for a, b, link in self.links:
            if (a, b) == (source, target):
                return link
        if source == target:
            return self.loopback
        if self.inter is not None and self.devices[source].node != self.devices[target].node:
            return self.inter
        return self.intra


def flat(num_devices: int, link: Link | None = None) -> Cluster:
    """Return equal devices in one node; without `link`, messages take no time."""
    return Cluster((Device(),) * num_devices, Link() if link is None else link)
