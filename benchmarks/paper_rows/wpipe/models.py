"""The models of WPipe's throughput and memory figures, as profiles of one V100 of 16 GB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from paper_rows.wpipe.resnext import resnext_profile
from pipesched.profiles import OptimizerName
from pipesched.profiles.costs import LayerSharding, MatmulPrecision, Profile
from pipesched.profiles.inside_stage import Fabric, ModelShape, estimated_profile
from pipesched.profiles.io import load_gpu, load_machine

MEMORY_BYTES = 16e9
RESNEXT_BLOCKS = {
    "ResNeXt200": (3, 24, 36, 3),
    "ResNeXt302": (3, 24, 70, 3),
    "ResNeXt500": (3, 24, 136, 3),
    "ResNeXt800": (3, 24, 236, 3),
}
"""Blocks of the stages; the paper gives their sum alone."""
RESNEXT_SLOWNESS = 1.2625
"""Seconds over the estimate with which ResNeXt500 makes the paper's 607.8 samples/s in placement A."""
MEMORY_BYTES_PER_S = 900e9
"""Bandwidth of a V100, by its data sheet."""
_SIZES = tuple(1 << power for power in range(11))


@cache
def bert(layers: int, precision: MatmulPrecision = "float32", optimizer: OptimizerName = "momentum") -> Profile:
    """Return the estimated profile of BERT of width 768 on 128 tokens, without a head.

    Its kernels lose efficiency with small micro-batches, and are bound by their launches in the end.
    """
    shape = ModelShape(
        name=f"Bert{layers}",
        layers=layers,
        hidden=768,
        ffn=3072,
        heads=12,
        kv_heads=12,
        head_size=64,
        vocab=30522,
        sequence=128,
        has_bias=True,
        has_dropout=True,
        has_positions=True,
        has_layer_norm=True,
    )
    node = load_machine("wpipe-v100")
    assert node.inter is not None, "a machine of several nodes has links between them"
    sharding = LayerSharding(precision=precision, attention="unfused")
    fabric = Fabric(len(node.devices), node.intra, node.inter)
    profile = estimated_profile(shape, sharding, load_gpu("v100"), fabric, _SIZES, optimizer)
    return replace(profile, layers=profile.layers[:-1])


@cache
def convolutions(blocks: Sequence[int], size: int) -> Profile:
    """Return the profile of a ResNeXt of groups 32 x 4 for micro-batches of `size`."""
    return resnext_profile(blocks, size, RESNEXT_SLOWNESS, MEMORY_BYTES_PER_S)
