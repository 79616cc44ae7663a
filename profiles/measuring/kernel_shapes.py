"""Seconds of products of matrices and of attention on this machine, by shape."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipesched.profiles import DeviceKind
from pipesched.profiles.costs import MatmulPrecision
from pipesched.profiles.inside_stage import MeasuredKernel, Operator
from pipesched.profiles.io import attention_operator, product_operator
from pipesched.profiles.measuring.computing import computing
from pipesched.profiles.measuring.timing import Timer


class _Sizes(NamedTuple):
    """The shapes of a kind of device.

    Attributes:
        hidden: Widths of transformers, whose products are measured.
        tokens: Tokens of their micro-batches.
        squares: Sizes of square products, which show tiles and launch.
        sequences: Tokens of a sample of attention.
        heads: Heads of attention.
    """

    hidden: tuple[int, ...]
    tokens: tuple[int, ...]
    squares: tuple[int, ...]
    sequences: tuple[int, ...]
    heads: tuple[int, ...]


_SIZES: dict[DeviceKind, _Sizes] = {
    "cpu": _Sizes((128, 256, 384), (64, 256), (32, 64, 96, 128, 192, 256, 384, 512), (128, 256, 512), (2, 4)),
    "cuda": _Sizes(
        (1024, 2048, 4096, 6144, 8192),
        (1024, 2048, 4096, 16384),
        (128, 256, 512, 768, 1024, 1536, 3072, 5120, 10240),
        (1024, 2048, 4096, 8192),
        (8, 16, 32, 64),
    ),
}
_HEAD = 128
"""Width of a head of attention."""
_LAP_S = 1e-3
"""Shortest time between two readings of the clock [s]."""
_MOST_RUNS = 1000
"""Most runs of a kernel between two readings."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def measure_kernels(
    device: DeviceKind = "cpu",
    precision: MatmulPrecision = "float32",
    *,
    threads: int = 1,
    repeats: int = 10,
    warmup: int = 3,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,  # noqa: ARG005
) -> list[MeasuredKernel]:
    """Return the median seconds of products of matrices and of causal attention, forward and backward.

    Shapes that do not fit into memory are left out.

    Args:
        device: A GPU, or the CPU.
        precision: Number type: float32, bfloat16 or float16.
        threads: Threads of one operation on the CPU.
        repeats: Measurements of a shape; each runs the kernel for at least a millisecond.
        warmup: Measurements before them.
        seed: Seed of the numbers.
        progress: Takes the share of the work that is done.
    """
    place = torch.device(device)
    kernels: list[MeasuredKernel] = []
    with computing(threads, [place]):
        shapes = [*_operators(device, 4 if precision == "float32" else 2)]
        for index, operator in enumerate(shapes):
            torch.manual_seed(seed)
            with suppress(torch.OutOfMemoryError):
                seconds = _median_s(_work(operator, place, _DTYPES[precision]), place, repeats, warmup)
                kernels.append(MeasuredKernel(operator, precision, seconds))
            progress((index + 1) / len(shapes))
    return kernels


def _operators(device: DeviceKind, element_bytes: int) -> Iterator[Operator]:
    """Yield the products of a transformer's blocks (qkv, projection, up, down), squares, and attention."""
    sizes = _SIZES[device]
    products = [
        (tokens, columns, inner)
        for tokens in sizes.tokens
        for width in sizes.hidden
        for columns, inner in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
    ]
    for rows, columns, inner in dict.fromkeys([*products, *((size,) * 3 for size in sizes.squares)]):
        yield product_operator(1, rows, columns, inner, element_bytes, element_bytes)
    for tokens in sizes.sequences:
        for heads in sizes.heads:
            for backward in (False, True):
                yield attention_operator(1, tokens, heads, heads, _HEAD, _HEAD, element_bytes, backward=backward)


def _work(operator: Operator, device: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    """Return a function that launches the kernel."""

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    if operator.kind == "matmul":
        left, right = numbers(operator.rows, operator.inner), numbers(operator.columns, operator.inner).t()
        out = torch.empty(operator.rows, operator.columns, device=device, dtype=dtype)
        return lambda: torch.mm(left, right, out=out)
    shape = (operator.batch, operator.columns, operator.rows, operator.inner)
    query, key, value = (numbers(*shape).requires_grad_() for _ in range(3))

    def forward() -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    if operator.kind == "attention":
        return forward
    result, gradient = forward(), numbers(*shape)
    return lambda: torch.autograd.grad(result, (query, key, value), gradient, retain_graph=True)


def _median_s(work: Callable[[], object], device: torch.device, repeats: int, warmup: int) -> float:
    """Return the median seconds of a kernel."""
    timer, runs = Timer(device), 1

    def laps_s(count: int) -> list[float]:
        timer.mark()
        for _ in range(count):
            for _ in range(runs):
                work()
            timer.mark()
        return timer.laps_s()

    laps_s(1)  # libraries choose and load their kernels
    runs = min(_MOST_RUNS, max(1, round(_LAP_S / max(1e-6, min(laps_s(3))))))
    laps_s(warmup)
    return statistics.median(laps_s(repeats)) / runs
