"""The costs of any stages of the same layers, each stage added up once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from pipesched.profiles.costs.layer_costs import LayerCosts
from pipesched.profiles.costs.layer_profile import Profile, costs_of_stages, stage_cost
from pipesched.profiles.costs.sharing_price import price_among
from pipesched.profiles.costs.stage_costs import StageCost, StageCosts, added_up


def stages_of_layers(
    layers: Profile | LayerCosts, microbatch_size: int | None = None, num_sharing: int = 1
) -> Callable[[Sequence[tuple[int, int]]], StageCosts]:
    """Return a function of the bounds of stages that returns their costs.

    Args:
        layers: Costs of all layers.
        microbatch_size: Samples of a micro-batch, with a profile (default: the smallest measured size).
        num_sharing: Ranks on each device, with a profile.

    Raises:
        ProfileError: The profile does not cover the size.
    """
    whole = ((0, len(layers.layers)),)
    if isinstance(layers, LayerCosts):
        costs, all_layers = layers.stage_costs(whole), layers.layers

        def added(first: int, last: int) -> StageCost:
            return added_up(all_layers[first:last])
    else:
        profile, size = layers, microbatch_size or layers.microbatch_sizes[0]
        costs, price = costs_of_stages(profile, whole, size, num_sharing), price_among(profile.sharing, num_sharing)

        def added(first: int, last: int) -> StageCost:
            return stage_cost(profile, first, last, size).slowed(price)

    stage_of = cache(added)
    return lambda bounds: replace(costs, stages=tuple([stage_of(first, last) for first, last in bounds]))
