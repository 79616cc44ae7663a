"""A cluster: devices, the links between them, and the NICs that devices of a node share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise


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


@dataclass(frozen=True)  # without slots: the lookups are kept beside the fields
class Cluster:
    """Devices and links.

    Attributes:
        devices: ``devices[d]`` is device ``d``.
        intra: The link between two devices of one node.
        inter: The link between devices of different nodes; None: as `intra`.
        loopback: The link of a device to itself, for ranks that share it.
        links: Exceptions, as (from device, to device, link).
        nics: ``nics[n]`` are the devices of one node that share network interface ``n`` for all that leaves the node
            and all that comes in; what a device in none sends and gets shares nothing but its links.
        origin: Where the numbers come from, in a few words.
    """

    devices: tuple[Device, ...]
    intra: Link = Link()
    inter: Link | None = None
    loopback: Link = Link()
    links: tuple[tuple[int, int, Link], ...] = ()
    origin: str = ""
    nics: tuple[tuple[int, ...], ...] = ()

    def link(self, source: int, target: int) -> Link:
        """Return the link from one device to another."""
        exception = self._exceptions.get((source, target))
        if exception is not None:
            return exception
        if source == target:
            return self.loopback
        if self.inter is not None and self.devices[source].node != self.devices[target].node:
            return self.inter
        return self.intra

    def nics_between(self, source: int, target: int) -> tuple[int | None, int | None]:
        """Return the shared interfaces that a message leaves by and comes in by; None where there is none."""
        if self.devices[source].node == self.devices[target].node:
            return None, None
        return self._nic_of.get(source), self._nic_of.get(target)

    @cached_property
    def _exceptions(self) -> Mapping[tuple[int, int], Link]:
        """The first of `links` between two devices counts."""
        return {(source, target): link for source, target, link in reversed(self.links)}

    @cached_property
    def _nic_of(self) -> Mapping[int, int]:
        return {device: index for index, devices in reversed([*enumerate(self.nics)]) for device in devices}


def flat(num_devices: int, link: Link | None = None) -> Cluster:
    """Return equal devices in one node; without `link`, messages take no time."""
    return Cluster((Device(),) * num_devices, Link() if link is None else link)


def of_nodes(node: Cluster, num_nodes: int) -> Cluster:
    """Return `num_nodes` copies of a node, numbered node by node.

    Args:
        node: The devices of one node with their links, `inter` and NICs.
        num_nodes: At least 1.
    """
    size = len(node.devices)
    starts = range(0, num_nodes * size, size)
    return replace(
        node,
        devices=tuple(replace(device, node=index) for index in range(num_nodes) for device in node.devices),
        links=tuple((a + start, b + start, link) for start in starts for a, b, link in node.links),
        nics=tuple(tuple(device + start for device in devices) for start in starts for devices in node.nics),
    )


def dealt(num_devices: int, num_nics: int) -> tuple[tuple[int, ...], ...]:
    """Return the NICs of a node of `num_devices`: neighbours share one, as evenly as can be."""
    bounds = [num_devices * nic // num_nics for nic in range(num_nics + 1)]
    return tuple(tuple(range(first, last)) for first, last in pairwise(bounds) if first < last)


def with_slow_device(cluster: Cluster, device: int, factor: float) -> Cluster:
    """Return `cluster` with a straggler, on which everything takes `factor` times as long."""
    slow = replace(cluster.devices[device], speed=cluster.devices[device].speed / factor)
    return replace(cluster, devices=(*cluster.devices[:device], slow, *cluster.devices[device + 1 :]))


def with_slow_link(cluster: Cluster, source: int, target: int, factor: float) -> Cluster:
    """Return `cluster` with a link, in both directions, over which everything takes `factor` times as long."""
    ends = dict.fromkeys(((source, target), (target, source)))
    slow = tuple((a, b, _slower(cluster.link(a, b), factor)) for a, b in ends)
    others = tuple((a, b, link) for a, b, link in cluster.links if (a, b) not in ends)
    return replace(cluster, links=(*others, *slow))


def _slower(link: Link, factor: float) -> Link:
    return Link(link.latency_s * factor, link.bandwidth_bytes_per_s / factor)
