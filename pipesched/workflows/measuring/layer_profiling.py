"""Profiles of layers whose costs are known, without a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipesched.profiles.costs import LayerCosts, profile_of_costs
from pipesched.profiles.io import costs_model, load_layer_costs
from pipesched.workflows import require_at_least, require_each_at_least, require_kind, unitless_times
from pipesched.workflows.arguments import load_costs, read_profile_argument
from pipesched.workflows.measuring.profile_result import ProfileMeasurement


def profile_of_layers(
    costs: LayerCosts | str | Path,
    microbatch_size: int = 1,
    microbatch_sizes: Sequence[int] | None = None,
    *,
    input_share: float | None = None,
) -> ProfileMeasurement:
    """Return a profile of layers whose costs somebody gives: what `tune`, `plan`, `partition` and all others take.

    Args:
        costs: Costs of the layers, or a table of them (.csv).
        microbatch_size: Samples of the micro-batch that they are of.
        microbatch_sizes: Samples of others: their seconds, messages and what they save are supposed to be in proportion
            to the samples, where small ones really take longer. None: no others.
        input_share: Share of B that I takes where the costs say B alone, and W the rest; None: none is supposed.

    Raises:
        ArgumentError: An argument makes no sense.
        ProfileError: The file is bad, or the costs say what a profile cannot: an overlap, an R unlike F, or that W
            holds another number of bytes than F saved.
    """
    require_kind("costs", costs, LayerCosts | str | Path, "LayerCosts, or a table of them")
    microbatch_size = require_at_least("microbatch_size", microbatch_size, 1)
    sizes = () if microbatch_sizes is None else require_each_at_least("microbatch_sizes", microbatch_sizes, 1)
    loaded = load_costs(costs) if isinstance(costs, LayerCosts) else load_layer_costs(costs)
    assert isinstance(loaded, LayerCosts), "as just asked"
    profile = profile_of_costs(loaded, costs_model(loaded.origin), microbatch_size, sizes)
    return ProfileMeasurement(read_profile_argument(profile, input_share), tuple(unitless_times(loaded)))
