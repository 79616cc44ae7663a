"""Profiles of layers with known costs, without a measurement."""

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
    """Return a profile of layers with given costs, for `tune`, `plan`, `partition` and all others.

    Args:
        costs: Costs of the layers, or a table of them (.csv).
        microbatch_size: Samples of the micro-batch of the costs.
        microbatch_sizes: Other sizes in samples. Seconds, messages and saved bytes are scaled in proportion to the
            samples; in reality small sizes take more time per sample. None: no other sizes.
        input_share: Share of B that I takes in costs with B alone; W takes the rest. None: no split is assumed.

    Raises:
        ArgumentError: An argument makes no sense.
        ProfileError: The file is bad, or a profile cannot express the costs: an overlap, an R unlike F, or a W that
            holds another number of bytes than F saved.
    """
    require_kind("costs", costs, LayerCosts | str | Path, "LayerCosts, or a table of them")
    microbatch_size = require_at_least("microbatch_size", microbatch_size, 1)
    sizes = () if microbatch_sizes is None else require_each_at_least("microbatch_sizes", microbatch_sizes, 1)
    loaded = load_costs(costs) if isinstance(costs, LayerCosts) else load_layer_costs(costs)
    assert isinstance(loaded, LayerCosts), "as just asked"
    profile = profile_of_costs(loaded, costs_model(loaded.origin), microbatch_size, sizes)
    return ProfileMeasurement(read_profile_argument(profile, input_share), tuple(unitless_times(loaded)))
