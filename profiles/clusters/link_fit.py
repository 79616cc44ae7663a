"""Fit a link to timed messages: latency, bandwidth, and the time on the ranks at its ends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipesched.profiles.clusters.cluster import Cluster, Device, Link


def fit_link(samples: Sequence[tuple[int, float]]) -> Link:
    """Return the link whose line latency + bytes / bandwidth is nearest to `samples`.

    The fit minimizes the sum of squared relative errors: small messages determine the latency, and large messages the
    bandwidth. The latency is 0 if the best line has a negative one. The bandwidth is unlimited if longer messages are
    not slower.

    Args:
        samples: (bytes, seconds above 0), of at least two sizes.
    """
    constant_s, per_byte_s = fit_line(samples)
    return Link(constant_s, 1 / per_byte_s if per_byte_s else math.inf)


def fit_line(samples: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return (seconds, seconds per byte), both at least 0, of the line with the least sum of squared relative errors.

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
        return mean_y, 0.0
    constant_s = mean_y - slope * mean_x
    if constant_s >= 0:
        return constant_s, slope
    squares = sum(w * x * x for w, (x, _) in zip(weights, samples, strict=True))
    return 0.0, sum(w * x * y for w, (x, y) in zip(weights, samples, strict=True)) / squares


@dataclass(frozen=True, slots=True)
class LoadedMessages:
    """Times of messages of one size between ranks that compute, all in seconds.

    Attributes:
        num_bytes: Bytes of each message.
        send_s: Time of a Send on its rank.
        post_s: Time of a Recv on its rank.
        receive_s: Time to take an arrived message on its rank.
        passage_s: Time from reaching the Send to the start of an op that waited for the message.
        op_s: Time from the end of an op to the next one.
    """

    num_bytes: int
    send_s: float
    post_s: float
    receive_s: float
    passage_s: float
    op_s: float


@dataclass(frozen=True, slots=True)
class LoadedLinkFit:
    """The fit of messages of any size between ranks that compute.

    Attributes:
        link: The link.
        op_s: Time from the end of an op to the next one [s].
        residuals: Largest relative error over all sizes, by the fitted quantity.
    """

    link: Link
    op_s: float
    residuals: Mapping[str, float]


def fit_loaded_link(samples: Sequence[LoadedMessages]) -> LoadedLinkFit:
    """Return the link that fits the samples; latency and bandwidth come from the passage minus the time on the ranks.

    Args:
        samples: Samples of at least two sizes, all seconds above 0.
    """
    send_s, send_s_per_byte = fit_line([(sample.num_bytes, sample.send_s) for sample in samples])
    receive_s, receive_s_per_byte = fit_line([(sample.num_bytes, sample.receive_s) for sample in samples])
    passage_s, passage_s_per_byte = fit_line([(sample.num_bytes, sample.passage_s) for sample in samples])
    per_byte_s = max(0.0, passage_s_per_byte - send_s_per_byte - receive_s_per_byte)
    link = Link(
        max(0.0, passage_s - send_s - receive_s),
        1 / per_byte_s if per_byte_s else math.inf,
        send_s,
        send_s_per_byte,
        statistics.median(sample.post_s for sample in samples),
        receive_s,
        receive_s_per_byte,
    )
    residuals = {
        "send": max(abs(link.sending_s(sample.num_bytes) / sample.send_s - 1) for sample in samples),
        "post": max(abs(link.post_s / sample.post_s - 1) for sample in samples),
        "receive": max(abs(link.receiving_s(sample.num_bytes) / sample.receive_s - 1) for sample in samples),
        "passage": max(abs(_passage_s(link, sample.num_bytes) / sample.passage_s - 1) for sample in samples),
    }
    return LoadedLinkFit(link, statistics.median(sample.op_s for sample in samples), residuals)


def _passage_s(link: Link, num_bytes: int) -> float:
    return link.sending_s(num_bytes) + link.transfer_s(num_bytes) + link.receiving_s(num_bytes)


def under_load(cluster: Cluster, fit: LoadedLinkFit) -> Cluster:
    """Return a cluster measured with idle ranks, corrected for ranks that compute.

    Args:
        cluster: Measured by ping-pong, at least two devices.
        fit: The fit of the link between the first two devices. Other links keep their measured differences to this
            link.
    """
    reference = cluster.link(0, 1)

    def loaded(link: Link) -> Link:
        per_byte_s = [1 / summand.bandwidth_bytes_per_s for summand in (fit.link, link, reference)]
        latency_s = max(0.0, fit.link.latency_s + link.latency_s - reference.latency_s)
        slope_s = max(0.0, per_byte_s[0] + per_byte_s[1] - per_byte_s[2])
        return replace(fit.link, latency_s=latency_s, bandwidth_bytes_per_s=1 / slope_s if slope_s else math.inf)

    return replace(
        cluster,
        devices=tuple(replace(device, op_s=fit.op_s) for device in cluster.devices),
        intra=loaded(cluster.intra),
        inter=None if cluster.inter is None else loaded(cluster.inter),
        links=tuple((source, target, loaded(link)) for source, target, link in cluster.links),
        loopback=replace(fit.link, latency_s=0.0, bandwidth_bytes_per_s=math.inf),
    )


def cluster_of(nodes: Sequence[int], links: Mapping[tuple[int, int], Link], origin: str) -> Cluster:
    """Return one device per rank, joined by the measured `links`.

    `intra` and `inter` are the medians of the links inside and between nodes. Pairs with another link are exceptions,
    in both directions.

    Args:
        nodes: The node of each rank.
        links: Each link by its pair of ranks, the lower one first.
        origin: Place and date of the measurement.
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
