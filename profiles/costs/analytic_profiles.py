"""Computed profiles: models from their published shapes, for a device of a given speed in FLOP/s.

A layer is the smallest unit of a pipeline cut: a block of ResNeXt (arXiv:1611.05431), or an encoder layer of BERT
(arXiv:1810.04805). Its parameters, activations and FLOPs follow from the shapes and are exact. FLOPs count only matrix
products and convolutions, two per multiplication. Seconds are estimates: FLOPs divided by one speed for all layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipesched.profiles import FLOAT32_BYTES
from pipesched.profiles.costs.layer_profile import LayerCost, Profile, Provenance
from pipesched.profiles.costs.measurement import LayerMeasurement

_GROUPS, _GROUP_WIDTH = 32, 4
_HIDDEN, _HEADS, _TOKENS, _VOCABULARY, _POSITIONS = 768, 12, 128, 30522, 512


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one layer, per sample.

    Attributes:
        forward_flops: Operations of the forward; a backward has twice as many.
        parameters: The number of parameters.
        outputs: Numbers in the output.
        saved: Numbers that autograd keeps inside, besides the input.
    """

    name: str
    forward_flops: int
    parameters: int
    outputs: int
    saved: int


def resnext(blocks: Sequence[int], image: int = 224, classes: int = 1000) -> list[LayerShape]:
    """Return a ResNeXt in 32 groups of width 4.

    Args:
        blocks: Blocks of the four stages: 3, 4, 6, 3 is ResNeXt-50.
        image: Height and width of an image in pixels.
        classes: Number of classes.
    """
    size = image // 2
    stem = LayerShape("stem", 2 * 49 * 3 * 64 * size**2, 49 * 3 * 64 + 128, 64 * (size // 2) ** 2, 2 * 64 * size**2)
    layers, inputs, size = [stem], 64, size // 2
    for stage, count in enumerate(blocks):
        width, outputs = _GROUPS * _GROUP_WIDTH << stage, 256 << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(_block(f"{stage + 1}.{index}", inputs, width, outputs, size, stride, has_shortcut=not index))
            inputs, size = outputs, size // stride
    layers.append(LayerShape("head", 2 * inputs * classes, inputs * classes + classes, 0, inputs + classes))
    return layers


def _block(
    name: str, inputs: int, width: int, outputs: int, size: int, stride: int, *, has_shortcut: bool
) -> LayerShape:
    """Return 1x1, grouped 3x3 and 1x1 convolutions with batch norms; the inputs of all of them are kept."""
    small = size // stride
    narrow, grouped, wide = inputs * width, 9 * width * width // _GROUPS, width * outputs
    shortcut = inputs * outputs if has_shortcut else 0
    return LayerShape(
        name,
        2 * (narrow * size**2 + (grouped + wide + shortcut) * small**2),
        narrow + grouped + wide + shortcut + 2 * (2 * width + outputs + (outputs if has_shortcut else 0)),
        outputs * small**2,
        2 * width * size**2 + (2 * width + outputs + (outputs if has_shortcut else 0)) * small**2,
    )


def bert(num_layers: int) -> list[LayerShape]:
    """Return BERT with encoder layers of width 768 on 128 tokens and a pooler; 12 layers are the base model."""
    embeddings = (_VOCABULARY + _POSITIONS + 2 + 2) * _HIDDEN
    states = _TOKENS * _HIDDEN
    matrices = 12 * _HIDDEN**2  # query, key, value, output: 4; up and down: 4 each
    scores = 2 * _TOKENS * states  # query times key, and the weights times value
    encoder = LayerShape(
        "encoder",
        2 * (_TOKENS * matrices + scores),
        matrices + 13 * _HIDDEN,  # biases: 4 + 4 + 1; two norms: 4
        states,
        15 * states + 2 * _HEADS * _TOKENS**2,  # query, key, value, context, two norms, 4 before GELU, 4 behind, ...
    )
    pooler = LayerShape("pooler", 2 * _HIDDEN**2, _HIDDEN**2 + _HIDDEN, 0, 2 * _HIDDEN)
    return [LayerShape("embeddings", 0, embeddings, states, states), *[encoder] * num_layers, pooler]


def computed_profile(
    model: str, layers: Sequence[LayerShape], microbatch_size: int, flops_per_s: float, step_bytes_per_s: float
) -> Profile:
    """Return the profile of a model in float32 on a device of the given speed.

    Args:
        model: The model's name.
        layers: The layers, in order.
        microbatch_size: Samples; the only size in the profile.
        flops_per_s: Operations per second, in forward and backward.
        step_bytes_per_s: The rate at which a Step of SGD with momentum reads weights, gradients and momentum, and
            writes two.
    """
    provenance = Provenance(
        device=f"computed from shapes for {flops_per_s:.4g} FLOP/s",
        dtype="float32",
        threads=1,
        companions=0,
        optimizer="sgd",
        warmup=0,
        repeats=1,
        seed=0,
        host_cores=1,
        versions=(),
        date="2022-04-25T00:00:00+00:00",
    )
    costs = _costs(layers, microbatch_size, flops_per_s, step_bytes_per_s)
    return Profile(model, tuple(costs), provenance)


def _costs(
    layers: Sequence[LayerShape], microbatch_size: int, flops_per_s: float, step_bytes_per_s: float
) -> Iterator[LayerCost]:
    input_bytes = 0
    for layer in layers:
        forward_s = microbatch_size * layer.forward_flops / flops_per_s
        output_bytes = microbatch_size * layer.outputs * FLOAT32_BYTES
        measured = LayerMeasurement(
            microbatch_size,
            forward_s,
            2 * forward_s,
            input_bytes,
            output_bytes,
            output_bytes,
            saved_bytes=microbatch_size * layer.saved * FLOAT32_BYTES,
            input_saved=True,
            output_saved=False,
            output_is_input=False,
        )
        weight_bytes = layer.parameters * FLOAT32_BYTES
        yield LayerCost(layer.name, weight_bytes, weight_bytes, 5 * weight_bytes / step_bytes_per_s, (measured,))
        input_bytes = output_bytes
