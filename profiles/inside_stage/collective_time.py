"""The seconds of a collective over GPUs of one or several nodes, as NCCL runs them: by ring or by tree.

A ring of r GPUs moves (r - 1) / r of the bytes over every GPU's link; an all-reduce moves them twice (Patarasuk and
Yuan, 2009). NCCL lays one ring through every network interface of the group in a node, and all rings run at once: k
GPUs per node have k interfaces, and each interface carries 1 / k of the bytes between nodes. An all-reduce over
two nodes takes NCCL's double tree, whose halves move the bytes once in each direction. An all-to-all sends 1 / r of its
bytes to every GPU. If k copies go to n equally
likely receivers (nodes or GPUs), n (1 - (1 - 1 / n)^k) of the receivers get at least one copy (DeepEP:
github.com/deepseek-ai/DeepEP).

    bandwidth  bytes moved / (share of the bandwidth), of the slower of both links
    latency    rounds of a ring; an all-reduce between nodes may take a tree, of 2 log2(nodes) rounds between nodes
    fixed      time of a collective besides its work
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipesched.profiles.clusters import Link
from pipesched.profiles.inside_stage.fabric import GpuGroup
from pipesched.profiles.inside_stage.operators import Collective, CollectiveKind


@dataclass(frozen=True, slots=True)
class _Fit:
    """A collective inside a node, as SimuMax fitted it on 8 B200 (data/kernels/README.md).

    Attributes:
        share: Share of the bandwidth.
        round_s: Time of a round besides its bytes.
        fixed_s: Time of the collective besides its rounds.
    """

    share: float
    round_s: float
    fixed_s: float


_INSIDE: dict[CollectiveKind, _Fit] = {
    "all_reduce": _Fit(0.797, 5.5e-6, 22e-6),
    "all_gather": _Fit(0.723, 9.2e-6, 23e-6),
    "reduce_scatter": _Fit(0.723, 8.0e-6, 26e-6),
    "all_to_all": _Fit(0.641, 7.3e-6, 20e-6),
    "send_receive": _Fit(0.78, 16e-6, 0.0),
}
_BETWEEN_SHARE = 0.85
"""Share of the bandwidth of a network interface."""

_MESSAGE_BYTES = 2**30
"""Bytes of the message that gives the bandwidth of a link between stages."""


def collective_s(collective: Collective, group: GpuGroup, intra: Link, *, is_chained: bool = False) -> float:
    """Return the seconds of a collective; 0 in a group of one GPU.

    Args:
        collective: The collective.
        group: The group of its GPUs; GPUs that share an interface have their part of the bandwidth between nodes.
        intra: Link of a GPU to the other GPUs of its node, each way.
        is_chained: Whether it is one of many in a row, such as sums of gradients. Most of its rounds then overlap; only
            as many rounds remain as a tree has.
    """
    per_node, num_nodes, inter, ranks = group.per_node, group.num_nodes, group.between, group.size
    if ranks < 2:
        return 0.0
    fit = _INSIDE[collective.kind]
    if collective.kind == "send_receive":
        link, share = (intra, fit.share) if num_nodes == 1 else (inter, _BETWEEN_SHARE)
        return fit.round_s + collective.num_bytes / (share * link.bandwidth_bytes_per_s)
    if collective.kind == "all_to_all":
        to_each, copies = collective.num_bytes / ranks, collective.copies
        # a node passes merged copies from other nodes on to its GPUs
        inside = to_each * ((per_node if copies == 1 else ranks) - 1) * _sent_share(ranks, copies)
        between = to_each * per_node * (num_nodes - 1) * _sent_share(num_nodes, copies)
        inside_s = inside / (fit.share * intra.bandwidth_bytes_per_s)
        between_s = between / (_BETWEEN_SHARE * inter.bandwidth_bytes_per_s)
        latency_s = fit.round_s * (per_node - 1) + inter.latency_s * (num_nodes - 1)
        return fit.fixed_s + latency_s + max(inside_s, between_s)
    passes = 2 if collective.kind == "all_reduce" else 1
    moved = passes * collective.num_bytes * (ranks - 1) / ranks
    inside_s = moved / (fit.share * intra.bandwidth_bytes_per_s) if per_node > 1 else 0.0
    if num_nodes == 1:
        return fit.fixed_s + passes * (ranks - 1) * fit.round_s + inside_s
    is_tree = passes == 2 and num_nodes == 2
    crossing = collective.num_bytes if is_tree else moved
    between_s = crossing / (per_node * _BETWEEN_SHARE * inter.bandwidth_bytes_per_s)
    ring_s = (ranks - num_nodes) * fit.round_s + (num_nodes - 1) * inter.latency_s
    tree_s = (per_node - 1) * fit.round_s + math.ceil(math.log2(num_nodes)) * inter.latency_s
    latency_s = passes * (min(ring_s, tree_s) if passes == 2 or is_chained else ring_s)
    return fit.fixed_s + latency_s + max(inside_s, between_s)


def _sent_share(parts: int, copies: int) -> float:
    """Return the share of the copies of a token that are sent, if each of the equally likely parts gets one."""
    return parts * (1 - (1 - 1 / parts) ** copies) / copies


def message_link(intra: Link, inter: Link, *, is_inside: bool) -> Link:
    """Return the link of a message between two stages, with the time and bandwidth of a send.

    Args:
        intra: Link of a GPU to the other GPUs of its node, each way.
        inter: Link of a GPU to other nodes, each way.
        is_inside: Whether both GPUs are in one node.
    """
    pair = GpuGroup(2, 1, inter) if is_inside else GpuGroup(1, 2, inter)
    empty_s, full_s = (
        collective_s(Collective("send_receive", size, "data"), pair, intra) for size in (0, _MESSAGE_BYTES)
    )
    return Link(empty_s, _MESSAGE_BYTES / (full_s - empty_s))
