"""The estimated profile of a GPT on a GPU: seconds by the roofline of the GPU, bytes by published formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from pipesched.profiles import FLOAT32_BYTES, OPTIMIZER_MOMENTS, OptimizerName, element_bytes
from pipesched.profiles.clusters import Gpu
from pipesched.profiles.costs.gpt_layers import GptExecution, GptLayer, GptShape, Roofline, gpt_layers
from pipesched.profiles.costs.layer_profile import LayerCost, LayerWork, Profile
from pipesched.profiles.costs.measurement import LayerMeasurement, LayerSplit
from pipesched.profiles.costs.provenance import LayerExecution, estimated_provenance


def gpt_profile(
    shape: GptShape,
    gpu: Gpu,
    microbatch_sizes: Sequence[int],
    execution: GptExecution,
    optimizer: OptimizerName,
    efficiency: float | None = None,
) -> Profile:
    """Return the estimated profile of a GPT, on one of the GPUs that share its layers.

    An optimizer keeps its moments at least in float32. For smaller weights it also keeps a copy of them in float32
    (mixed precision: arXiv:1910.02054, section 3.1). With Adam and 2-byte weights a parameter takes 16 bytes: 2 for the
    weight, 2 for the gradient and 12 for the optimizer.

    Args:
        shape: The shape of the GPT, as in `gpt_layers`.
        gpu: The GPU; its data sheet has a peak for the number type.
        microbatch_sizes: Samples, rising.
        execution: Settings of the computation.
        optimizer: The optimizer.
        efficiency: Share of the peak that matrix products reach (default: the efficiency of the GPU).
    """
    share = gpu.efficiency if efficiency is None else efficiency
    peak = gpu.flops_per_s[execution.dtype]
    roofline = Roofline(
        share * peak, gpu.memory_bandwidth_bytes_per_s, gpu.link_bandwidth_bytes_per_s, execution.tensor_parallel
    )
    by_size = [gpt_layers(shape, size, execution) for size in microbatch_sizes]
    embedding, block, head = (
        _layer_cost(layers, microbatch_sizes, execution, optimizer, roofline) for layers in zip(*by_size, strict=True)
    )
    named = [
        ("embedding", embedding),
        *((f"block {index}", block) for index in range(shape.layers)),
        ("head", head),
    ]
    shared = LayerExecution(**{field.name: getattr(execution, field.name) for field in fields(LayerExecution)})
    device = _estimated(gpu, execution, share * peak)
    provenance = estimated_provenance(device, execution.dtype, optimizer, shared)
    return Profile(shape.name, tuple(LayerCost(name, *fields) for name, fields in named), provenance)


def _estimated(gpu: Gpu, execution: GptExecution, flops_per_s: float) -> str:
    """Return the device's name in the profile, with the assumptions of the estimate."""
    words = [
        f"{gpu.name} of {gpu.memory_bytes / 2**30:.4g} GiB",
        f"estimated: {flops_per_s / 1e12:.4g} TFLOP/s in {execution.dtype}",
        f"{gpu.memory_bandwidth_bytes_per_s / 1e12:.4g} TB/s",
    ]
    if execution.tensor_parallel > 1:
        link = f"{gpu.link_bandwidth_bytes_per_s / 1e9:.4g} GB/s"
        words.append(f"one of {execution.tensor_parallel} that share every layer over {link}")
    if execution.sequence_parallel:
        words.append("sequence parallelism")
    if execution.selective_recompute:
        words.append("attention recomputed")
    if execution.flash_attention:
        words.append("FlashAttention")
    return ", ".join(words)


def _layer_cost(
    layers: Sequence[GptLayer],
    microbatch_sizes: Sequence[int],
    execution: GptExecution,
    optimizer: OptimizerName,
    roofline: Roofline,
) -> tuple[int, int, float, tuple[LayerMeasurement, ...], LayerWork]:
    """Return the fields of a `LayerCost` after its name; `layers` is one layer at each of the sizes."""
    size = element_bytes(execution.dtype)
    parameters = layers[0].parameters
    weight_bytes = size * parameters
    moment_bytes = OPTIMIZER_MOMENTS[optimizer] * max(size, FLOAT32_BYTES) * parameters
    master_bytes = FLOAT32_BYTES * parameters if size < FLOAT32_BYTES else 0
    optimizer_bytes = moment_bytes + master_bytes
    # a step reads and zeroes the gradient, writes the weights, and reads them if there is no float32 copy
    step_bytes = (3 if master_bytes else 4) * weight_bytes + 2 * optimizer_bytes
    work = LayerWork(
        copy_s=roofline.moved_s(2 * weight_bytes),
        predict_s=roofline.moved_s(4 * weight_bytes + moment_bytes),
        average_s=roofline.moved_s(11 * weight_bytes),  # a copy moves 2, each of three sums of two tensors moves 3
    )
    measurements = tuple(
        _measurement(size, layer, roofline) for size, layer in zip(microbatch_sizes, layers, strict=True)
    )
    return weight_bytes, optimizer_bytes, roofline.moved_s(step_bytes), measurements, work


def _measurement(microbatch_size: int, layer: GptLayer, roofline: Roofline) -> LayerMeasurement:
    input_s, weight_s = roofline.pass_s(layer.backward_input), roofline.pass_s(layer.backward_weight)
    is_first = not layer.backward_input.kernels
    split = LayerSplit(input_s, weight_s, layer.gradient_bytes, layer.left_bytes, input_saved=True, output_saved=False)
    return LayerMeasurement(
        microbatch_size=microbatch_size,
        forward_s=roofline.pass_s(layer.forward),
        backward_s=input_s + weight_s,
        input_bytes=layer.input_bytes,
        output_bytes=layer.output_bytes,
        output_storage_bytes=layer.output_bytes,
        saved_bytes=layer.saved_bytes,
        input_saved=True,
        output_saved=False,
        output_is_input=False,
        split=None if is_first else split,
    )
