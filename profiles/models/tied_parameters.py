"""Tied parameters, which two layers share; a pipeline refuses them across stages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from pipesched.profiles import ProfileError
from pipesched.profiles.models.model import Model, build_layers

Named = Iterable[tuple[str, nn.Parameter]]


def require_untied(model: Model, bounds: Sequence[tuple[int, int]]) -> None:
    """Refuse a model if two stages share a parameter: each would step its own copy of it.

    Args:
        model: The model; layers whose builders might share parameters are built once more, one at a time.
        bounds: Half-open range of layers of each stage.

    Raises:
        ProfileError: Two stages share a parameter, or a builder fails.
    """
    stage_of = {layer: stage for stage, (first, last) in enumerate(bounds) for layer in range(first, last)}
    built = (
        () if _makes_its_own(builder) else build_layers(model, index, index + 1, seed=0)[0].named_parameters()
        for index, builder in enumerate(model.layers)
    )
    for first, second, name in shared_parameters(built):
        if stage_of[first] != stage_of[second]:
            raise ProfileError(
                f"model {model.name}: layer {first} on stage {stage_of[first]} and layer {second} on stage "
                f"{stage_of[second]} share {name}, expected stages without tied weights; untie them, or cut the model "
                "so that one stage has both"
            )


def shared_parameters(layers: Iterable[Named]) -> Iterator[tuple[int, int, str]]:
    """Yield (first, second, name in the second) of all layers that share a parameter; keep none of them alive."""
    owner = WeakIdKeyDictionary()
    for index, named in enumerate(layers):
        for name, parameter in named:
            first = owner.setdefault(parameter, index)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            if first != index:
                yield first, index, name


def _makes_its_own(builder: Callable[[], nn.Module]) -> bool:
    """Return whether the builder is a class with plain arguments, or copies a layer checked by `resolve_model`."""
    if not isinstance(builder, partial):
        return isinstance(builder, type)
    given = [*builder.args, *builder.keywords.values()]
    is_plain = not any(isinstance(value, (nn.Module, torch.Tensor)) for value in given)
    return builder.func is copy.deepcopy or (isinstance(builder.func, type) and is_plain)
