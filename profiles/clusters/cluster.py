"""Machines: devices with their speed and memory, the links between them, and the data sheet of a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, NamedTuple

from annotated_types import Gt

from pipesched.profiles import ProfileError, require_count
from pipesched.profiles.clusters.kernel_curve import KernelCurve
from pipesched.schedules.common import Bytes, Count, Seconds, shown
from pipesched.schedules.formats import MAX_DEVICES


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: the figures of its data sheet, and the share of the peak that it reaches.

    Attributes:
        name: Name of the GPU.
        memory_bytes: Size of the memory, as a program on the GPU sees it.
        flops_per_s: Peak throughput of dense matrix products, by number type [floating-point operations per second].
        memory_bandwidth_bytes_per_s: Bandwidth of the memory.
        link_bandwidth_bytes_per_s: Bandwidth to the other GPUs of the node, in each direction.
        efficiency: Share of the peak that the fastest matrix products reach.
        origin: The source of every number.
        sustained: Share of the speed of products and attention that remains in a training run, where power limits the
            clock.
        multiprocessors: Number of multiprocessors (compute units of AMD), or None if unknown.
        kernels: The curve of the GPU's kernels, or None if unknown.
        float8_efficiency: Share of the float8 peak that the fastest products reach, or None for `efficiency`.
        machine: Name of the usual node of the GPU, or None if unknown.
        family: Name of the GPUs with the same chip, whose published runs tell the error of an estimate, or None.
    """

    name: str
    memory_bytes: int
    flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    link_bandwidth_bytes_per_s: float
    efficiency: float
    origin: str
    sustained: float = 1.0
    multiprocessors: int | None = None
    kernels: KernelCurve | None = None
    float8_efficiency: float | None = None
    machine: str | None = None
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A directed connection: a message occupies the link for bytes / bandwidth, then travels for the latency.

    A message also takes time of both ranks (o of LogGP), given for devices of speed 1:

        sender    Send ├ send_s + bytes x send_s_per_byte ┤ next op
                                                          ├ bytes / bandwidth ┼ latency ┤
        receiver  Recv ├ post_s ┤ next op              the op that uses it  ├ receive_s + .. ┤ F

    Attributes:
        latency_s: Time from the departure of the last byte to its arrival.
        bandwidth_bytes_per_s: Bandwidth of the link, for all messages together.
        send_s: Time of a Send on its rank.
        send_s_per_byte: Further time of a Send on its rank, per byte.
        post_s: Time of a Recv on its rank.
        receive_s: Time to take an arrived message, on the rank that uses it.
        receive_s_per_byte: Further time to take an arrived message, per byte.
    """

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = math.inf
    send_s: float = 0.0
    send_s_per_byte: float = 0.0
    post_s: float = 0.0
    receive_s: float = 0.0
    receive_s_per_byte: float = 0.0

    def occupied_s(self, num_bytes: int) -> float:
        """Return the time that a message occupies the link, before the next one can start [s]."""
        return num_bytes / self.bandwidth_bytes_per_s

    def transfer_s(self, num_bytes: int) -> float:
        """Return the time from the departure of the first byte to the arrival of the last [s]."""
        return self.occupied_s(num_bytes) + self.latency_s

    def sending_s(self, num_bytes: int) -> float:
        """Return the time of a Send on its rank [s]."""
        return self.send_s + num_bytes * self.send_s_per_byte

    def receiving_s(self, num_bytes: int) -> float:
        """Return the time to take an arrived message, on the rank that uses it [s]."""
        return self.receive_s + num_bytes * self.receive_s_per_byte

    @property
    def keeps_ranks(self) -> bool:
        """Whether a message costs its sender or its receiver time of its own."""
        return any((self.send_s, self.send_s_per_byte, self.post_s, self.receive_s, self.receive_s_per_byte))


@dataclass(frozen=True, slots=True)
class Device:
    """A device: a processor that runs ops, in a machine with some memory.

    Attributes:
        speed: Divisor of the seconds of a profile: 0.5 is a straggler at half speed.
        memory_bytes: Capacity, or None if unlimited.
        node: Number of its machine.
        op_s: Runtime overhead between any two ops, at speed 1 [s].
    """

    speed: Annotated[float, Gt(0)] = 1.0
    memory_bytes: Bytes | None = None
    node: Count = 0
    op_s: Seconds = 0.0


class HandOverSeconds(NamedTuple):
    """The time that a message costs its sender and its receiver, if no other ranks share their devices [s].

    Attributes:
        send_s: Time of the Send on the sender.
        post_s: Time of the Recv on the receiver.
        receive_s: Time to take the arrived message on the receiver.
    """

    send_s: float
    post_s: float
    receive_s: float


@dataclass(frozen=True)  # without slots: the lookups are kept beside the fields
class Cluster:
    """A cluster: devices, and the links between them.

    Attributes:
        devices: ``devices[d]`` is device ``d``.
        intra: The link between two devices of one node.
        inter: The link between devices of different nodes (default: `intra`).
        loopback: The link of a device to itself, for ranks that share it.
        links: Exceptions, as (from device, to device, link).
        nics: ``nics[n]`` are the devices of one node that share network interface ``n`` for all traffic with other
            nodes. Devices without an entry share only their links.
        origin: Source of the numbers, in a few words.
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

    def hand_over_s(self, source: int, target: int, num_bytes: int) -> HandOverSeconds:
        """Return the time of a message from one device to another on the ranks of both [s]."""
        link, sender, receiver = self.link(source, target), self.devices[source].speed, self.devices[target].speed
        return HandOverSeconds(
            link.sending_s(num_bytes) / sender, link.post_s / receiver, link.receiving_s(num_bytes) / receiver
        )

    def nics_between(self, source: int, target: int) -> tuple[int | None, int | None]:
        """Return the NIC of a message at its source and at its target; None within a node, or without a shared NIC."""
        if self.devices[source].node == self.devices[target].node:
            return None, None
        return self._nic_of.get(source), self._nic_of.get(target)

    @cached_property
    def has_hand_over(self) -> bool:
        """Whether ranks spend time on messages or between ops."""
        usual = (self.intra, self.loopback) if self.inter is None else (self.intra, self.inter, self.loopback)
        links = (*usual, *(link for _, _, link in self.links))
        return any(link.keeps_ranks for link in links) or any(device.op_s for device in self.devices)

    @cached_property
    def _exceptions(self) -> Mapping[tuple[int, int], Link]:
        """The links of `links` by their devices; the first counts if two devices have several."""
        return {(source, target): link for source, target, link in reversed(self.links)}

    @cached_property
    def _nic_of(self) -> Mapping[int, int]:
        return {device: index for index, devices in reversed([*enumerate(self.nics)]) for device in devices}


def flat(num_devices: int, link: Link | None = None) -> Cluster:
    """Return equal devices in one node; without `link`, messages take no time.

    Raises:
        ProfileError: `num_devices` or `link` is invalid.
    """
    num_devices = require_count("num_devices", num_devices, least=0)
    if not isinstance(link, Link | None):
        raise ProfileError(f"link: got {shown(link)}, expected a Link, or None")
    return Cluster((Device(),) * num_devices, Link() if link is None else link)


def of_nodes(node: Cluster, num_nodes: int) -> Cluster:
    """Return `num_nodes` copies of a node, numbered node by node.

    Args:
        node: The devices of one node with their links, `inter` and NICs.
        num_nodes: Number of nodes, at least 1.

    Raises:
        ProfileError: `num_nodes` or `node` is invalid.
    """
    if not isinstance(node, Cluster):
        raise ProfileError(f"node: got {shown(node)}, expected a Cluster")
    size = len(node.devices)
    num_nodes = require_count("num_nodes", num_nodes, most=MAX_DEVICES // max(1, size))
    starts = range(0, num_nodes * size, size)
    return replace(
        node,
        devices=tuple(replace(device, node=index) for index in range(num_nodes) for device in node.devices),
        links=tuple((a + start, b + start, link) for start in starts for a, b, link in node.links),
        nics=tuple(tuple(device + start for device in devices) for start in starts for devices in node.nics),
    )


def first_devices(cluster: Cluster, num_devices: int | None) -> Cluster:
    """Return the first `num_devices` devices of a cluster (default: all), with the links and NICs between them."""
    last = len(cluster.devices[:num_devices])
    among = (tuple(device for device in devices if device < last) for devices in cluster.nics)
    return replace(
        cluster,
        devices=cluster.devices[:last],
        links=tuple((a, b, link) for a, b, link in cluster.links if max(a, b) < last),
        nics=tuple(devices for devices in among if devices),
    )


def dealt(num_devices: int, num_nics: int) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each NIC of a node: neighbours share a NIC, as evenly as possible."""
    bounds = [num_devices * nic // num_nics for nic in range(num_nics + 1)]
    return tuple(tuple(range(first, last)) for first, last in pairwise(bounds) if first < last)


def with_slow_device(cluster: Cluster, device: int, factor: float) -> Cluster:
    """Return `cluster` with a straggler, on which all work takes `factor` times as long."""
    slow = replace(cluster.devices[device], speed=cluster.devices[device].speed / factor)
    return replace(cluster, devices=(*cluster.devices[:device], slow, *cluster.devices[device + 1 :]))


def with_slow_link(cluster: Cluster, source: int, target: int, factor: float) -> Cluster:
    """Return `cluster` with a link on which, in both directions, messages take `factor` times as long.

    The time of messages on the ranks at its ends is unchanged.
    """
    ends = dict.fromkeys(((source, target), (target, source)))
    slow = tuple((a, b, _slower(cluster.link(a, b), factor)) for a, b in ends)
    others = tuple((a, b, link) for a, b, link in cluster.links if (a, b) not in ends)
    return replace(cluster, links=(*others, *slow))


def _slower(link: Link, factor: float) -> Link:
    return replace(link, latency_s=link.latency_s * factor, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor)
