"""A GPU by its data sheet: peak speed, memory and bandwidths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """The figures of a data sheet, and the share of its peak that a GPU really reaches.

    Attributes:
        name: Name of the GPU.
        memory_bytes: Size of its memory.
        flops_per_s: Peak of dense matrix products, by the name of their number type [1/s].
        memory_bandwidth_bytes_per_s: Bandwidth of its memory.
        link_bandwidth_bytes_per_s: Bandwidth to the other GPUs of its node, each way.
        efficiency: Share of the peak that large matrix products reach.
        origin: The source of every number.
    """

    name: str
    memory_bytes: int
    flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    link_bandwidth_bytes_per_s: float
    efficiency: float
    origin: str
