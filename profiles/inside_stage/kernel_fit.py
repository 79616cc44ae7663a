"""The curve of a GPU's kernels, fitted to measured seconds of products of matrices and of attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Gpu, KernelCurve
from pipesched.profiles.costs import LINEAR_BYTES, MatmulPrecision
from pipesched.profiles.inside_stage.kernel_time import kernel_s
from pipesched.profiles.inside_stage.operators import Operator

FEWEST_PRODUCTS = 8
"""Fewest measured products of a fit, which finds seven numbers."""


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel that ran alone.

    Attributes:
        operator: The kernel.
        precision: Number type of its products.
        seconds: Its time.
    """

    operator: Operator
    precision: MatmulPrecision
    seconds: float


class _Knob(NamedTuple):
    """A number of the curve that the search turns, with its limits."""

    name: str
    least: float
    most: float
    is_factor: bool = True
    """Whether a step multiplies the number, or adds to it."""

    def set(self, curve: KernelCurve, value: float) -> KernelCurve:
        """Return the curve with this number set to `value`, or to the nearest limit."""
        number: Any = min(self.most, max(self.least, value))
        return replace(curve, **{self.name: number})

    def turned(self, curve: KernelCurve, step: float) -> KernelCurve:
        """Return the curve with this number changed by `step`."""
        value = getattr(curve, self.name)
        return self.set(curve, value * math.exp(step) if self.is_factor else value + step / 2)

    def distance(self, value: float, start: float) -> float:
        """Return the distance of two values of the number: of their logarithms, or of themselves."""
        return abs(math.log(value / start)) if self.is_factor else abs(value - start)


_PRODUCT_KNOBS = (
    _Knob("matmul", 0.01, 1.0),
    _Knob("memory", 0.01, 1.0),
    _Knob("small_tile", 0.1, 1.0),
    _Knob("pipeline_depth", 1.0, 1e4),
    _Knob("launch_s", 1e-7, 1e-2),
    _Knob("wave_loss", 0.0, 1.0, is_factor=False),
    _Knob("exposed_memory", 0.0, 1.0, is_factor=False),
)
_ATTENTION_KNOBS = (
    _Knob("attention", 0.01, 1.0),
    _Knob("attention_backward", 0.01, 1.0),
    _Knob("attention_tail", 0.01, 100.0),
)
_MOST_KERNELS = 500
"""Most kernels of a kind that a fit looks at; of more, it takes some at equal distances."""
_STEPS = tuple(0.5**power for power in range(1, 9))
"""Steps of the search, the largest first."""
_MOST_ROUNDS = 40
"""Most rounds over the knobs at one step."""
_BEND = 1.0
"""Error, in steps, below which its square counts, because the search stops early at the edges of |error|."""
_PULL = 0.002
"""Weight of the distance from the start, so that a number stays where the kernels say nothing of it."""


def fit_kernels(kernels: Sequence[MeasuredKernel], gpu: Gpu) -> Gpu:
    """Return the GPU with a curve that fits measured kernels.

    The search turns one number at a time, from the curve that the GPU has, and keeps a turn that lowers the mean of
    |log(predicted / measured)| and a small pull to that curve. So a few odd kernels move the curve little, and a number
    stays as it is if no kernel depends on it. The same kernels give the same curve. The share of the peak that the
    fastest products reach rises if a measured product is faster. Products determine the numbers for launch, tiles,
    memory and the share of the peak; attention, if measured, determines its own shares. The other numbers stay.

    Args:
        kernels: Products of matrices, at least `FEWEST_PRODUCTS`, and attention; other kernels are ignored.
        gpu: Data sheet with peaks for the number types of the kernels, bandwidth, multiprocessors, and a curve to
            start from.

    Raises:
        ProfileError: There are too few products, a product is faster than the peak, or the sheet lacks a number.
    """
    products = [kernel for kernel in kernels if kernel.operator.kind == "matmul"]
    if len(products) < FEWEST_PRODUCTS:
        raise ProfileError(
            f"kernels: got {len(products)} products of matrices, expected at least {FEWEST_PRODUCTS}; measure more"
        )
    if gpu.kernels is None:
        raise ProfileError(
            f'gpu {gpu.name}: got no field kernels, expected the name of a curve to start from; add "kernels": "a100"'
        )
    fitted = _searched(_reaching(gpu, products), _some(products), _PRODUCT_KNOBS)
    attention = [kernel for kernel in kernels if kernel.operator.kind in ("attention", "attention_backward")]
    if attention:
        kinds = {kernel.operator.kind for kernel in attention} | {"attention_tail"}
        fitted = _searched(fitted, _some(attention), [knob for knob in _ATTENTION_KNOBS if knob.name in kinds])
    return fitted


def _some(kernels: Sequence[MeasuredKernel]) -> Sequence[MeasuredKernel]:
    return kernels[:: -(-len(kernels) // _MOST_KERNELS)]


def kernel_errors(kernels: Sequence[MeasuredKernel], gpu: Gpu) -> list[float]:
    """Return (predicted - measured) / measured of kernels that run alone on a GPU.

    Raises:
        ProfileError: The data sheet lacks a number that is needed.
    """
    alone = replace(gpu, sustained=1.0)
    return [kernel_s(kernel.operator, alone, kernel.precision) / kernel.seconds - 1 for kernel in kernels]


def _reaching(gpu: Gpu, products: Sequence[MeasuredKernel]) -> Gpu:
    """Return the GPU whose fastest products are as fast as the fastest measured ones.

    Raises:
        ProfileError: A product is faster than the peak, or the data sheet lacks a peak.
    """
    for product in products:
        peak = gpu.flops_per_s.get(product.precision)
        if peak is None:
            raise ProfileError(
                f"gpu {gpu.name}: flops_per_s: got no {product.precision}, expected one of "
                f"{', '.join(gpu.flops_per_s)}; add the number to the GPU's file"
            )
        share = product.operator.flops / product.seconds / peak
        if share > 1:
            op = product.operator
            raise ProfileError(
                f"kernels: got {share:.3g} of the {product.precision} peak of {gpu.name} for m={op.rows}, "
                f"n={op.columns}, k={op.inner}, expected at most 1; correct the seconds or the GPU"
            )
        if product.precision not in LINEAR_BYTES:
            gpu = replace(gpu, efficiency=max(gpu.efficiency, share))
        elif gpu.float8_efficiency is not None:
            gpu = replace(gpu, float8_efficiency=max(gpu.float8_efficiency, share))
    return gpu


def _searched(gpu: Gpu, kernels: Sequence[MeasuredKernel], knobs: Sequence[_Knob]) -> Gpu:
    """Return the GPU with the numbers of the curve at which the kernels' errors are least."""

    def with_curve(curve: KernelCurve) -> Gpu:
        return replace(gpu, kernels=curve)

    assert gpu.kernels is not None, "as fit_kernels asks"
    best = origin = gpu.kernels

    def error(curve: KernelCurve, bend: float) -> float:
        logs = (math.log1p(error) for error in kernel_errors(kernels, with_curve(curve)))
        far = math.fsum(math.hypot(log, bend) - bend for log in logs) / len(kernels)
        moved = (knob.distance(getattr(curve, knob.name), getattr(origin, knob.name)) for knob in knobs)
        return far + _PULL * math.fsum(moved)

    for step in _STEPS:
        measure = partial(error, bend=_BEND * step)
        least = measure(best)
        for _ in range(_MOST_ROUNDS):
            before, start = least, best
            best, least = _round(best, least, knobs, step, measure)
            if least >= before:
                break
            onward = _beyond(start, best, knobs)  # once more in the direction of all turns together
            further = measure(onward)
            if further < least:
                best, least = onward, further
    return with_curve(best)


def _round(
    curve: KernelCurve, least: float, knobs: Sequence[_Knob], step: float, error: Callable[[KernelCurve], float]
) -> tuple[KernelCurve, float]:
    """Return the curve after one turn of each knob that lowers the error, and the error."""
    for knob in knobs:
        for signed in (step, -step):
            turned = knob.turned(curve, signed)
            error_there = error(turned)
            if error_there < least:
                curve, least = turned, error_there
                break
    return curve, least


def _beyond(start: KernelCurve, end: KernelCurve, knobs: Sequence[_Knob]) -> KernelCurve:
    """Return an extrapolated curve: the step from `start` to `end`, repeated once more."""
    curve = end
    for knob in knobs:
        first, last = getattr(start, knob.name), getattr(end, knob.name)
        far = last * last / first if knob.is_factor else 2 * last - first
        curve = knob.set(curve, far)
    return curve
