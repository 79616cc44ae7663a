"""A profile scaled to measured runs, so that the layers of the measured stages can be cut into other stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipesched.profiles.costs.layer_profile import LayerCost, Profile, stage_cost
from pipesched.profiles.costs.measurement import LayerMeasurement
from pipesched.profiles.costs.single_stage import StageCost


@dataclass(frozen=True, slots=True)
class _Factors:
    """The ratio of measured to profiled seconds, for each kind of work of a stage."""

    forward: float
    backward: float
    input: float
    weight: float
    step: float


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
        ProfileError: The size is outside the measured ones.
    """
    layers: list[LayerCost] = []
    for (first, last), measured in zip(bounds, stages, strict=True):
        profiled = stage_cost(profile, first, last, microbatch_size)
        factors = _factors(measured, profiled)
        of_stage = [_scaled(layer, factors) for layer in profile.layers[first:last]]
        layers += of_stage if profiled.step_s else _stepped(of_stage, measured.step_s)
    return replace(profile, layers=tuple(layers))


def _factors(measured: StageCost, profiled: StageCost) -> _Factors:
    backward = _ratio(measured.whole_backward_s, profiled.backward_s, 1.0)
    return _Factors(
        forward=_ratio(measured.forward_s, profiled.forward_s, 1.0),
        backward=backward,
        input=_ratio(measured.backward_input_s, profiled.backward_input_s, backward),
        weight=_ratio(measured.backward_weight_s, profiled.backward_weight_s, backward),
        step=_ratio(measured.step_s, profiled.step_s, 1.0),
    )


def _ratio(measured_s: float | None, profiled_s: float | None, otherwise: float) -> float:
    return measured_s / profiled_s if measured_s is not None and profiled_s else otherwise


def _scaled(layer: LayerCost, factors: _Factors) -> LayerCost:
    measurements = tuple(_scaled_measurement(measurement, factors) for measurement in layer.measurements)
    return replace(layer, step_s=layer.step_s * factors.step, measurements=measurements)


def _stepped(layers: Sequence[LayerCost], step_s: float) -> list[LayerCost]:
    """Share the Step of a stage among its layers, whose profile has no Step, by weight bytes; evenly without weights.

    Args:
        step_s: Seconds of the stage's Step.
    """
    weights = [layer.weight_bytes for layer in layers]
    if not any(weights):
        weights = [1] * len(layers)
    return [
        replace(layer, step_s=step_s * weight / sum(weights)) for layer, weight in zip(layers, weights, strict=True)
    ]


def _scaled_measurement(measurement: LayerMeasurement, factors: _Factors) -> LayerMeasurement:
    split = measurement.split
    return replace(
        measurement,
        forward_s=measurement.forward_s * factors.forward,
        backward_s=measurement.backward_s * factors.backward,
        split=split
        and replace(
            split,
            backward_input_s=split.backward_input_s * factors.input,
            backward_weight_s=split.backward_weight_s * factors.weight,
        ),
    )
