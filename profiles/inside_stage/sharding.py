"""The split of a model's layers: whether it divides the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage.model_shape import ModelShape
from pipesched.schedules.common import faults


def require_divided(shape: ModelShape, sharding: LayerSharding) -> None:
    """Refuse a split that does not divide a model.

    Raises:
        ProfileError: A number is out of range, or does not divide the part of the model that it splits.
    """
    for fault in faults(sharding):
        raise ProfileError(f"sharding: {fault}")
    for name, whole, size in _divided(shape, sharding):
        count = getattr(sharding, name)
        if size % count:
            raise ProfileError(
                f"sharding of {shape.name}: `{name}`: got {count}, expected a divisor of {whole}={size}; "
                f"try `{name}={_largest_divisor(shape, sharding, name)}`"
            )
    if sharding.expert_tensor not in (1, sharding.tensor):
        raise ProfileError(
            f"sharding of {shape.name}: `expert_tensor`: got {sharding.expert_tensor}, expected 1 or "
            f"{sharding.tensor}, as `tensor`; try `expert_tensor=1`"
        )
    if sharding.num_gpus % (sharding.expert * sharding.expert_tensor):
        raise ProfileError(
            f"sharding of {shape.name}: `expert`: got {sharding.expert} x {sharding.expert_tensor} GPUs, expected a "
            f"divisor of the {sharding.num_gpus} GPUs of a stage; lower it, or raise `data`"
        )


def _largest_divisor(shape: ModelShape, sharding: LayerSharding, name: str) -> int:
    """Return the largest count below the given one that divides all numbers of the model that the field splits."""
    for count in range(getattr(sharding, name) - 1, 1, -1):
        smaller: dict[str, Any] = {name: count}
        parts = _divided(shape, replace(sharding, **smaller))
        if all(size % count == 0 for part, _, size in parts if part == name):
            return count
    return 1


def _divided(shape: ModelShape, sharding: LayerSharding) -> Iterator[tuple[str, str, int]]:
    """Yield each field that splits a number of the model, the number's name, and the number."""
    yield "tensor", "heads", shape.heads
    yield "tensor", "ffn", shape.ffn
    yield "context", "sequence", shape.sequence
    if shape.latent is None and shape.kv_heads > sharding.tensor:  # fewer heads are copied
        yield "tensor", "kv_heads", shape.kv_heads
    if sharding.has_sequence:
        yield "tensor", "tokens of a sample on one GPU", shape.sequence // sharding.context
    if shape.experts is not None:
        yield "expert", "experts", shape.experts.count
        yield "expert_tensor", "expert ffn", shape.experts.ffn
