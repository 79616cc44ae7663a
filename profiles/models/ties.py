"""Parameters that several layers of a model share: the ties between its stages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

import numpy  # noqa: F401 -- before torch, whose C code would load it and lose an interrupt
import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from pipesched.profiles import ProfileError
from pipesched.profiles.models.model import Model, Tie, build_layers

Named = Iterable[tuple[str, nn.Parameter]]


def shared_parameters(layers: Iterable[Named]) -> tuple[Tie, ...]:
    """Return the parameters that several layers share, given the named parameters of each; keep no layer."""
    places = WeakIdKeyDictionary()
    for index, named in enumerate(layers):
        for name, parameter in named:
            places.setdefault(parameter, []).append((index, name))  # type: ignore[no-untyped-call]  # torch's
    return tuple(tuple(tie) for tie in places.values() if len({layer for layer, _ in tie}) > 1)  # type: ignore[no-untyped-call]  # torch's


def ties_between(model: Model, bounds: Sequence[tuple[int, int]]) -> tuple[Tie, ...]:
    """Return the ties of `model` whose places are in several stages.

    Args:
        model: The model.
        bounds: Half-open range of layers of each stage.
    """
    return tuple(tie for tie in model.ties if len(_stages_with(tie, bounds)) > 1)


def tied_stages(model: Model, bounds: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the stages that share parameters with other stages, ascending; arguments as for `ties_between`."""
    stages = (_stages_with(tie, bounds) for tie in ties_between(model, bounds))
    return tuple(sorted(set(chain.from_iterable(stages))))


def _stages_with(tie: Tie, bounds: Sequence[tuple[int, int]]) -> set[int]:
    return {stage for stage, (first, last) in enumerate(bounds) for layer, _ in tie if first <= layer < last}


def require_known_ties(model: Model, bounds: Sequence[tuple[int, int]]) -> None:
    """Refuse a model if two stages share a parameter that is not among its ties: each would step a copy of its own.

    Args:
        model: The model; layers whose builders might share parameters are built once more, one at a time.
        bounds: Half-open range of layers of each stage.

    Raises:
        ProfileError: Two stages share such a parameter, or a builder fails.
    """
    if model.build_range is not None:  # it builds copies of its own
        return
    built = (
        () if _makes_its_own(builder) else build_layers(model, index, index + 1, seed=0)[0].named_parameters()
        for index, builder in enumerate(model.layers)
    )
    for tie in shared_parameters(built):
        stage_of = {layer: stage for stage, bound in enumerate(bounds) for layer in range(*bound)}
        first = tie[0][0]
        for layer, name in tie:
            if stage_of[layer] != stage_of[first]:
                raise ProfileError(
                    f"model {model.name}: layer {first} on stage {stage_of[first]} and layer {layer} on stage "
                    f"{stage_of[layer]} share {name} through their builders, expected finished modules, which show "
                    "their ties; return the modules themselves, or cut the model so that one stage has both layers"
                )


def _makes_its_own(builder: Callable[[], nn.Module]) -> bool:
    """Return whether a builder makes parameters of its own: by a class, or by a copy of a layer.

    A class has plain arguments. `resolve_model` has checked the parameters of a copied layer.
    """
    if not isinstance(builder, partial):
        return isinstance(builder, type)
    given = [*builder.args, *builder.keywords.values()]
    is_plain = not any(isinstance(value, (nn.Module, torch.Tensor)) for value in given)
    return builder.func is copy.deepcopy or (isinstance(builder.func, type) and is_plain)
