"""Profiles from other data: costs of layers, a profile fitted to measured runs, medians of several profiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, is_dataclass, replace
from statistics import median
from typing import Any

from pipesched.profiles import ProfileError
from pipesched.profiles.costs.given_costs import LayerCosts
from pipesched.profiles.costs.layer_profile import LayerCost, LayerWork, Profile
from pipesched.profiles.costs.measurement import HAS_PARAMETERS, LayerMeasurement, LayerSplit
from pipesched.profiles.costs.provenance import UNSAID
from pipesched.profiles.costs.single_stage import StageCost
from pipesched.profiles.costs.stage_costs import StageCosts
from pipesched.schedules import Yardstick


def profile_of_costs(costs: LayerCosts, model: str, microbatch_size: int, sizes: Collection[int] = ()) -> Profile:
    """Return a profile of layers, at one micro-batch size, or at several sizes in proportion.

    As in every profile, the first stage has no I, so its W takes all of B. From I to W a stage holds all bytes that F
    saved.

    Args:
        costs: Costs of the layers.
        model: The model's name in the profile.
        microbatch_size: Samples of the micro-batch of `costs`.
        sizes: Further sizes in samples; seconds, messages and saved bytes are in proportion.

    Raises:
        ProfileError: The costs have no backward, or fields that a profile cannot express.
    """
    _require_expressible(costs)
    all_sizes = sorted({microbatch_size, *sizes})
    by_size = [StageCosts(costs.layers).of_share(size / microbatch_size).stages for size in all_sizes]
    input_bytes = [0] * len(all_sizes)
    layers = []
    names = costs.names or ("layer",) * len(costs.layers)
    for index, (name, layer) in enumerate(zip(names, costs.layers, strict=True)):
        scaled = [stages[index] for stages in by_size]
        measured = tuple(map(_measurement, all_sizes, scaled, input_bytes))
        predict_s = layer.said("predict_s")
        work = LayerWork(layer.copy_s, predict_s, layer.average_s)
        states = layer.weight_bytes, layer.optimizer_bytes, layer.step_s
        gradients = {name: getattr(layer, name) for name in ("gradient_bytes", "kept_gradient_bytes")}
        layers.append(LayerCost(name, *states, measured, work, **gradients))
        input_bytes = [cost.output_bytes for cost in scaled]
    others = [str(size) for size in all_sizes if size != microbatch_size]
    assumed = f", sizes {', '.join(others)} in proportion" if others else ""
    device = f"{costs.origin or 'costs of layers'}, micro-batches of {microbatch_size}{assumed}"
    return Profile(model, tuple(layers), replace(UNSAID, device=device))


def profile_with_input_share(profile: Profile, input_share: float) -> Profile:
    """Return the profile with an assumed I and W for layers without a measured split; see `with_input_share`.

    From I to W such a layer holds all bytes that F saved. The first layer is unchanged, because the first stage of a
    profile has no I.

    Args:
        profile: Profile of a model.
        input_share: Share of B spent on I, from 0 to 1.
    """
    first, *others = profile.layers
    layers = [
        replace(layer, measurements=tuple(_with_share(measured, input_share) for measured in layer.measurements))
        for layer in others
    ]
    if layers == others:
        return profile
    device = f"{profile.provenance.device}, I supposed to be {input_share:g} of B"
    return replace(profile, layers=(first, *layers), provenance=replace(profile.provenance, device=device))


def _with_share(measured: LayerMeasurement, input_share: float) -> LayerMeasurement:
    if measured.split is not None:
        return measured
    input_s = input_share * measured.backward_s
    return _with_split(measured, input_s, measured.backward_s - input_s)


def _with_split(measured: LayerMeasurement, input_s: float, weight_s: float) -> LayerMeasurement:
    """Return a layer with a split; from I to W the layer holds all bytes that F saved."""
    kept = (measured.saved_bytes, measured.input_saved, measured.output_saved, measured.boundary)
    return replace(measured, split=LayerSplit(input_s, weight_s, HAS_PARAMETERS, *kept))


def _require_expressible(costs: LayerCosts) -> None:
    where = costs.origin or "costs of layers"
    if costs.overlap:
        raise ProfileError(
            f"{where}: got overlap {costs.overlap:g}, expected none: a profile has no overlap; leave it out"
        )
    if costs.names and len(costs.names) != len(costs.layers):
        raise ProfileError(f"{where}: got {len(costs.names)} names, expected {len(costs.layers)}, one per layer")
    for index, layer in enumerate(costs.layers):
        if layer.whole_backward_s is None:
            raise ProfileError(
                f"{where}: layer {index}: got no backward, expected backward_s, or its two halves; add a column"
            )
        for name, usual in (
            ("recompute_s", layer.forward_s),
            ("saved_for_weight_bytes", layer.saved_bytes),
            ("unshard_s", 0.0),
        ):
            if getattr(layer, name) not in (None, usual):
                raise ProfileError(
                    f"{where}: layer {index}: got {name} {getattr(layer, name):g}, expected {usual:g}, as a profile "
                    "assumes; leave the column out"
                )


def _measurement(size: int, cost: StageCost, input_bytes: int) -> LayerMeasurement:
    """Return the measurement of a layer; its saved bytes include the input if they are large enough."""
    keeps_input = 0 < input_bytes <= cost.saved_bytes
    inside_bytes = cost.saved_bytes - input_bytes if keeps_input else cost.saved_bytes
    assert cost.whole_backward_s is not None, "as just asked"
    measured = LayerMeasurement(
        size,
        cost.forward_s,
        cost.whole_backward_s,
        input_bytes,
        cost.output_bytes,
        cost.output_bytes,
        inside_bytes,
        input_saved=keeps_input,
        output_saved=False,
        output_is_input=False,
        working_bytes=cost.working_bytes or None,
        output_gradient_bytes=cost.output_gradient_bytes,
    )
    if cost.backward_input_s is None or cost.backward_weight_s is None:
        return measured
    return _with_split(measured, cost.backward_input_s, cost.backward_weight_s)


def fitted_profile(
    profile: Profile, bounds: Sequence[tuple[int, int]], stages: Sequence[StageCost], microbatch_size: int
) -> Profile:
    """Return `profile` with the seconds of each layer scaled to the measured seconds of its stage.

    Args:
        profile: Profile of the model.
        bounds: Half-open range of layers of every stage that was run.
        stages: Measured costs of the stages.
        microbatch_size: Samples of a micro-batch of the runs.

    Raises:
        ProfileError: The profile does not cover the size.
    """
    layers: list[LayerCost] = []
    for (first, last), measured in zip(bounds, stages, strict=True):
        profiled = profile.cost_of_layers(first, last, microbatch_size)
        backward = _ratio(measured.whole_backward_s, profiled.backward_s, 1.0)
        factors = {
            "forward_s": _ratio(measured.forward_s, profiled.forward_s, 1.0),
            "backward_s": backward,
            "backward_input_s": _ratio(measured.backward_input_s, profiled.backward_input_s, backward),
            "backward_weight_s": _ratio(measured.backward_weight_s, profiled.backward_weight_s, backward),
            "step_s": _ratio(measured.step_s, profiled.step_s, 1.0),
        }
        of_stage = _slowed(profile.layers[first:last], defaultdict(lambda: 1.0, factors).__getitem__)
        layers += of_stage if profiled.step_s else _stepped(of_stage, measured.step_s)
    return replace(profile, layers=tuple(layers))


def _ratio(measured_s: float | None, profiled_s: float | None, otherwise: float) -> float:
    return measured_s / profiled_s if measured_s is not None and profiled_s else otherwise


def _stepped(layers: Sequence[LayerCost], step_s: float) -> list[LayerCost]:
    """Divide the seconds of a stage's Step among its layers: by weight bytes, or evenly without weights.

    Args:
        layers: Layers whose profile has no Step.
        step_s: Seconds of the stage's Step.
    """
    weights = [layer.weight_bytes for layer in layers]
    if not any(weights):
        weights = [1] * len(layers)
    return [
        replace(layer, step_s=step_s * weight / sum(weights)) for layer, weight in zip(layers, weights, strict=True)
    ]


def with_fit_factor(profile: Profile, factor: float) -> Profile:
    """Return an estimated profile with its seconds at `factor` times the estimate.

    Args:
        profile: An estimated profile, which has a split.
        factor: Seconds of every layer over their estimate.
    """
    provenance = profile.provenance
    assert provenance.sharding is not None, "an estimate has a split"
    ratio = factor / provenance.sharding.fit_factor
    if ratio == 1:
        return profile
    return replace(
        profile,
        layers=_slowed(profile.layers, lambda name: ratio),  # noqa: ARG005 -- one factor for all
        provenance=replace(provenance, sharding=replace(provenance.sharding, fit_factor=factor)),
    )


def _slowed(value: Any, factor_of: Callable[[str], float], name: str = "") -> Any:
    """Return `value` with each field of seconds, also of inner records, times the factor for the field's name."""
    if isinstance(value, tuple):
        return tuple(_slowed(item, factor_of, name) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        slowed = {field.name: _slowed(getattr(value, field.name), factor_of, field.name) for field in fields(value)}
        return replace(value, **slowed)
    return value * factor_of(name) if name.endswith("_s") and value is not None else value


def median_profile(*profiles: Profile) -> Profile:
    """Return the first profile with the medians of the seconds of all, and the mean of all yardsticks.

    The median of two profiles is their mean.

    Raises:
        ProfileError: The profiles have different models, layers or micro-batch sizes.
    """
    first, *others = profiles
    for other in others:
        if _shape(other) != _shape(first):
            raise ProfileError(
                f"profiles of {first.model} and {other.model}: got different layers or micro-batch sizes, expected "
                "the same; measure the same model twice"
            )
    layers = tuple(_median(several) for several in zip(*(profile.layers for profile in profiles), strict=True))
    yardstick = Yardstick.mean(profile.provenance.yardstick for profile in profiles)
    return replace(first, layers=layers, provenance=replace(first.provenance, yardstick=yardstick))


def median_layer(layers: Sequence[LayerCost]) -> LayerCost:
    """Return the first of equal layers with the medians of the seconds of all."""
    layer: LayerCost = _median(tuple(layers))
    return layer


def _shape(profile: Profile) -> tuple[str, int, tuple[int, ...]]:
    return profile.model, len(profile.layers), profile.microbatch_sizes


def _median(several: tuple[Any, ...]) -> Any:
    """Return the first record with each float replaced by the median over all; every float is a number of seconds."""
    first = several[0]
    if all(isinstance(value, float) for value in several):
        return median(several)
    if all(isinstance(value, tuple) for value in several):
        return tuple(_median(values) for values in zip(*several, strict=True))
    if is_dataclass(first) and not isinstance(first, type) and None not in several:
        names = [field.name for field in fields(first)]
        return replace(first, **{name: _median(tuple(getattr(value, name) for value in several)) for name in names})
    return first
