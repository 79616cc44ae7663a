"""Fit latency and bandwidth of a link to timed messages."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pipesched.profiles.clusters.cluster import Cluster, Device, Link


def fit_link(samples: Sequence[tuple[int, float]]) -> Link:
    """Return the link whose line latency + bytes / bandwidth is nearest to `samples`.

    Least squares of the *relative* errors, as small messages tell the latency and large ones the bandwidth. Where the
    line would need a negative latency, the latency is 0; where longer messages are not slower, the bandwidth is
    unlimited.

    Args:
        samples: (bytes, seconds above 0), of at least two sizes.
    """
    weights = [1 / seconds**2 for _, seconds in samples]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, samples, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, samples, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, samples, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, samples, strict=True)) / spread
    if slope <= 0:
        return Link(latency_s=mean_y)
    latency_s = mean_y - slope * mean_x
    if latency_s < 0:
        latency_s = 0.0
        squares = sum(w * x * x for w, (x, _) in zip(weights, samples, strict=True))
        slope = sum(w * x * y for w, (x, y) in zip(weights, samples, strict=True)) / squares
    return Link(latency_s, 1 / slope)


def cluster_of(nodes: Sequence[int], links: Mapping[tuple[int, int], Link], origin: str) -> Cluster:
    """Return one device per rank, joined by the measured `links`.

    The links inside and between nodes are the medians; a pair that differs from them is listed, in both directions.

    Args:
        nodes: The node of each rank.
        links: By pair of ranks, the lower one first.
        origin: Where they were measured.
    """
    inside = [link for (a, b), link in links.items() if nodes[a] == nodes[b]]
    between = [link for (a, b), link in links.items() if nodes[a] != nodes[b]]
    inter = _median_link(between) if between else None
    intra = _median_link(inside or between)
    exceptions = []
    for (a, b), link in sorted(links.items()):
        usual = intra if nodes[a] == nodes[b] else inter
        if link != usual:
            exceptions += [(a, b, link), (b, a, link)]
    return Cluster(tuple(Device(node=node) for node in nodes), intra, inter, links=tuple(exceptions), origin=origin)


def _median_link(links: Sequence[Link]) -> Link:
    bandwidth = statistics.median(link.bandwidth_bytes_per_s for link in links)
    return Link(statistics.median(link.latency_s for link in links), bandwidth)
