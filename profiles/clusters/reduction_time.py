"""The seconds of an all-reduce over replicas on the links of a cluster, by ring or by hierarchy.

A *ring* of r replicas takes 2 (r - 1) rounds. In each round every replica sends 1 / r of the bytes to the next replica
(Patarasuk and Yuan, 2009). A round takes as long as its slowest hop. Hops take turns at a NIC that they share.

A *hierarchical* way exists if each of n > 1 nodes has k > 1 replicas (Mikami et al., arXiv:1811.05233):

    scatter   k - 1 rounds of 1 / k in a ring inside every node: each replica then has the node's sum of 1 / k
    across    2 (n - 1) rounds of 1 / (k n) in k rings, each of them through one replica of every node
    gather    k - 1 rounds of 1 / k inside

The faster of the two counts, as in NCCL; gloo has only the ring.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipesched.profiles.clusters.cluster import Cluster

Hop: TypeAlias = tuple[int, int]
"""(from device, to device)."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Equal rounds, one after the other.

    Attributes:
        count: Number of rounds.
        hops: The hops of each round.
        occupied_s: Longest time that the bytes of a round occupy a link or NIC [s].
        seconds: Seconds of one round, the latency included.
    """

    count: int
    hops: tuple[Hop, ...]
    occupied_s: float
    seconds: float


ReductionWay: TypeAlias = Literal["ring", "hierarchical"]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """An all-reduce in one of the two ways, phase by phase."""

    way: ReductionWay
    phases: tuple[Rounds, ...]

    @property
    def seconds(self) -> float:
        """The time from the departure of the first byte to the arrival of the last [s]."""
        return math.fsum(phase.count * phase.seconds for phase in self.phases)

    @property
    def hops(self) -> tuple[Hop, ...]:
        """All links of the all-reduce, each once."""
        return tuple(dict.fromkeys(hop for phase in self.phases for hop in phase.hops))

    @property
    def occupied_s(self) -> float:
        """Time until the last link of the all-reduce is free [s]."""
        return max(self.until_s().values(), default=0.0)

    def until_s(self) -> dict[Hop, float]:
        """Return, for each link of the all-reduce, the time from the start until the link is free [s]."""
        seconds_of: dict[Hop, float] = {}
        begin_s = 0.0
        for phase in self.phases:
            seconds_of |= dict.fromkeys(phase.hops, begin_s + phase.count * phase.occupied_s)
            begin_s += phase.count * phase.seconds
        return seconds_of


def all_reduce(num_bytes: int, devices: Sequence[int], cluster: Cluster) -> AllReduce:
    """Return the faster way to sum `num_bytes` over replicas on `devices`, or the ring if both are equal."""
    return min(_ways(num_bytes, devices, cluster), key=lambda way: way.seconds)


def all_reduce_rings(num_bytes: int, rings: Sequence[Sequence[int]], cluster: Cluster) -> AllReduce:
    """Return the way to sum `num_bytes` over the devices of each ring, all rings at once; none on one device.

    A smaller ring takes as many rounds as the largest ring.
    """
    size, hops = max(map(len, rings), default=1), dict.fromkeys(hop for ring in rings for hop in ring_hops(ring))
    return AllReduce("ring", (_rounds(2 * (size - 1), num_bytes, size, tuple(hops), cluster),) if hops else ())


def possible_hops(devices: Sequence[int], cluster: Cluster) -> tuple[Hop, ...]:
    """Return the links of all ways to sum over `devices`, for any number of bytes."""
    return tuple(dict.fromkeys(hop for way in _ways(0, devices, cluster) for hop in way.hops))


def _ways(num_bytes: int, devices: Sequence[int], cluster: Cluster) -> Iterator[AllReduce]:
    size = len(devices)
    yield AllReduce("ring", (_rounds(2 * (size - 1), num_bytes, size, ring_hops(devices), cluster),))
    by_node: defaultdict[int, list[int]] = defaultdict(list)
    for device in devices:
        by_node[cluster.devices[device].node].append(device)
    nodes = list(by_node.values())
    inner, outer = len(nodes[0]), len(nodes)
    if outer < 2 or inner < 2 or any(len(members) != inner for members in nodes):
        return
    inside = tuple(hop for members in nodes for hop in ring_hops(members))
    across = tuple(hop for members in zip(*nodes, strict=True) for hop in ring_hops(members))
    scatter = _rounds(inner - 1, num_bytes, inner, inside, cluster)
    between = _rounds(2 * (outer - 1), num_bytes, inner * outer, across, cluster)
    yield AllReduce("hierarchical", (scatter, between, scatter))


def ring_hops(devices: Sequence[int]) -> tuple[Hop, ...]:
    """Return the hops of a ring: from each device to the next, and from the last to the first; empty for one device."""
    return tuple(zip(devices, (*devices[1:], *devices[:1]), strict=True)) if len(devices) > 1 else ()


def _rounds(count: int, num_bytes: int, shares: int, hops: tuple[Hop, ...], cluster: Cluster) -> Rounds:
    """Return rounds in which each hop carries 1 / `shares` of the bytes."""
    through: defaultdict[tuple[str, int], float] = defaultdict(float)
    ends: dict[Hop, list[tuple[str, int]]] = {}
    for hop in hops:
        out, into = cluster.nics_between(*hop)
        ends[hop] = [(side, nic) for side, nic in (("out", out), ("in", into)) if nic is not None]
        for end in ends[hop]:
            through[end] += cluster.link(*hop).occupied_s(num_bytes) / shares
    occupied_s = {
        hop: max([cluster.link(*hop).occupied_s(num_bytes) / shares, *(through[end] for end in ends[hop])])
        for hop in hops
    }
    return Rounds(
        count,
        hops,
        max(occupied_s.values(), default=0.0),
        max((occupied_s[hop] + cluster.link(*hop).latency_s for hop in hops), default=0.0),
    )
