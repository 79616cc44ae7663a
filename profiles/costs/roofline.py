"""The roofline of a GPU: the time of an operation is the longer of the times of its FLOPs and of its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipesched.profiles.clusters import Link, all_reduce, flat


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operation on a GPU.

    Attributes:
        flops: Floating-point operations of products of matrices, two per multiplication.
        num_bytes: Bytes that it reads from the GPU's memory and writes there.
    """

    flops: int
    num_bytes: int


def matrix_product(rows: int, inner: int, columns: int, element_bytes: int, count: int = 1) -> Kernel:
    """Return `count` products of a matrix (rows, inner) and a matrix (inner, columns), each number moved once."""
    numbers = rows * inner + inner * columns + rows * columns
    return Kernel(2 * count * rows * inner * columns, count * element_bytes * numbers)


@dataclass(frozen=True, slots=True)
class LayerPass:
    """One pass of a layer on one GPU, one operation after the other.

    Attributes:
        reduced_bytes: Bytes of each all-reduce over the GPUs that share the layer.
    """

    kernels: tuple[Kernel, ...] = ()
    reduced_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits of a GPU.

    Attributes:
        flops_per_s: Speed of matrix products.
        bytes_per_s: Bandwidth of the memory.
        link_bytes_per_s: Bandwidth to each of the other GPUs that share a layer, each way.
        num_gpus: Number of GPUs that share a layer.
    """

    flops_per_s: float
    bytes_per_s: float
    link_bytes_per_s: float = math.inf
    num_gpus: int = 1

    def kernel_s(self, kernel: Kernel) -> float:
        """Return the seconds of one operation."""
        return max(kernel.flops / self.flops_per_s, kernel.num_bytes / self.bytes_per_s)

    def pass_s(self, layer_pass: LayerPass) -> float:
        """Return the seconds of a pass; nothing overlaps, and all-reduces have no latency."""
        cluster = flat(self.num_gpus, Link(bandwidth_bytes_per_s=self.link_bytes_per_s))
        reductions = (all_reduce(count, range(self.num_gpus), cluster) for count in layer_pass.reduced_bytes)
        return math.fsum([*map(self.kernel_s, layer_pass.kernels), *(reduction.seconds for reduction in reductions)])

    def moved_s(self, num_bytes: int) -> float:
        """Return the seconds in which `num_bytes` bytes are read or written."""
        return num_bytes / self.bytes_per_s
