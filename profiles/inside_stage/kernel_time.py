"""The seconds of a kernel on a GPU, from its shape, the data sheet and the curve of the GPU's kernels.

A product of matrices is cut into tiles, and each multiprocessor works on one tile at a time. The tiles of a last,
incomplete wave leave multiprocessors idle; small tiles and short inner dimensions use a multiprocessor badly:

    waves      tiles / multiprocessors, rounded up by the share `wave_loss`
    compute    waves x 2 x tile rows x tile columns x (inner + pipeline depth) / (share of one multiprocessor's peak)
    memory     bytes / (share of the bandwidth)
    seconds    launch + longer of both + exposed share x shorter of both

A product in float8 reads elements of one byte, and its tiles fill their pipelines with twice the columns, in float4
with nearly four times as many. In a training run power limits the clock: computation takes 1 / `sustained` of its time
alone, memory traffic does not. A width of heads that is no multiple of `_ALIGNED` elements leaves no kernel for the
tensor cores. The library chooses the fastest tile; so does the model. All other kernels are
attention, or only move bytes.
"""

from __future__ import annotations

import math

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Gpu, KernelCurve
from pipesched.profiles.costs import LINEAR_BYTES, AttentionKernel, MatmulPrecision
from pipesched.profiles.inside_stage.operators import Operator

_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128))
"""Rows and columns of the tiles of a product, the largest first."""
_ATTENTION_ROWS = 128
"""Rows of a block of attention."""
_ALIGNED = 8
"""Elements of 16 bytes, in which tensor cores read operands of two bytes."""
_UNALIGNED_SHARE = 0.1
"""Share of the throughput of unaligned products: half of the BigScience runs with heads of 108 and 150 numbers."""


def kernel_s(operator: Operator, gpu: Gpu, precision: MatmulPrecision, attention: AttentionKernel = "fused") -> float:
    """Return the seconds of one kernel in a training run.

    Args:
        operator: The kernel.
        gpu: The GPU, with its number of multiprocessors and a curve of its kernels.
        precision: Number type of matrix products; in float8 and float4 all but the linear layers run in
            bfloat16.
        attention: Kernel of attention.

    Raises:
        ProfileError: The data sheet lacks a number that is needed.
    """
    curve = gpu.kernels
    if curve is None:
        raise ProfileError(f'gpu {gpu.name}: got no field kernels, expected the name of a curve; add "kernels": "a100"')
    if precision in LINEAR_BYTES and not operator.is_linear:
        precision = "bfloat16"
    if operator.kind in ("matmul", "group_matmul"):
        return _product_s(operator, gpu, curve, precision)
    if operator.kind in ("attention", "attention_backward"):
        return _attention_s(operator, gpu, curve, precision, attention)
    share = {"permute": curve.permute, "cross_entropy": curve.cross_entropy}.get(operator.kind, curve.memory)
    return curve.launch_s + operator.num_bytes / (share * gpu.memory_bandwidth_bytes_per_s)


def _product_s(operator: Operator, gpu: Gpu, curve: KernelCurve, precision: MatmulPrecision) -> float:
    """Return the seconds of a product of matrices, or of one product per expert."""
    multiprocessors = _multiprocessors(gpu)
    rate = curve.matmul * gpu.sustained * _reachable(gpu, precision) / multiprocessors
    depth = curve.pipeline_depth * 2 / LINEAR_BYTES.get(precision, 2)
    compute_s = math.inf
    for rows, columns in _TILES:
        waves = operator.batch * -(-operator.rows // rows) * -(-operator.columns // columns) / multiprocessors
        work = 2 * rows * columns * (operator.inner + depth)
        halvings = math.log2(_TILES[0][0] * _TILES[0][1] / (rows * columns))
        waves += curve.wave_loss * (math.ceil(waves) - waves)
        compute_s = min(compute_s, waves * work / (rate * curve.small_tile**halvings))
    if any(count % _ALIGNED for count in (operator.columns, operator.inner)) and operator.name in ("scores", "values"):
        compute_s /= _UNALIGNED_SHARE
    memory_s = operator.num_bytes / (curve.memory * gpu.memory_bandwidth_bytes_per_s)
    fixed_s = operator.batch * curve.expert_s if operator.kind == "group_matmul" else curve.launch_s
    return fixed_s + max(compute_s, memory_s) + curve.exposed_memory * min(compute_s, memory_s)


def _attention_s(
    operator: Operator, gpu: Gpu, curve: KernelCurve, precision: MatmulPrecision, attention: AttentionKernel
) -> float:
    """Return the seconds of attention."""
    share = curve.attention if operator.kind == "attention" else curve.attention_backward
    share *= {"flash_1": curve.flash_1, "flash_2": curve.flash_2}.get(attention, 1.0)
    rate = share * gpu.sustained * _reachable(gpu, precision)
    blocks = operator.batch * operator.columns * -(-operator.rows // _ATTENTION_ROWS)
    tail = curve.attention_tail * _multiprocessors(gpu) / max(1, blocks)
    memory_s = operator.num_bytes / (curve.memory * gpu.memory_bandwidth_bytes_per_s)
    return curve.launch_s + max(operator.flops / rate * (1 + tail), memory_s)


def _reachable(gpu: Gpu, precision: MatmulPrecision) -> float:
    """Return the throughput of the fastest products in a precision [floating-point operations per second]."""
    peak = gpu.flops_per_s.get(precision)
    if peak is None:
        raise ProfileError(
            f"gpu {gpu.name}: flops_per_s: got no {precision}, expected one of {', '.join(gpu.flops_per_s)}; "
            "try another precision, or add the number to the GPU's file"
        )
    share = gpu.float8_efficiency if precision in LINEAR_BYTES else None
    return peak * (gpu.efficiency if share is None else share)


def _multiprocessors(gpu: Gpu) -> int:
    """Return the number of multiprocessors."""
    if gpu.multiprocessors is None:
        raise ProfileError(
            f"gpu {gpu.name}: got no field multiprocessors, expected their number; add it to the GPU's file"
        )
    return gpu.multiprocessors
