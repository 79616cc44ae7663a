"""A GPU as its maker describes it: what it computes, reads and sends in a second at best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """The figures of a data sheet, and how much of its peak a GPU really comes to.

    Attributes:
        memory_bytes: What it holds.
        flops_per_s: Peak of dense products of matrices, by the name of their number type [1/s].
        memory_bandwidth_bytes_per_s: Between it and its memory.
        link_bandwidth_bytes_per_s: To the other GPUs of its node, each way.
        efficiency: The share of the peak that large products of matrices come to.
        origin: The source of every number.
    """

    name: str
    memory_bytes: int
    flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    link_bandwidth_bytes_per_s: float
    efficiency: float
    origin: str
