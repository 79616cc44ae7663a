"""Costs that a user gives: of the layers of a model, or of a device whose stages share them equally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pipesched.profiles import ProfileError
from pipesched.profiles.costs.single_stage import ADDED_UP, StageCost, added_up
from pipesched.profiles.costs.stage_costs import CostSource, StageCosts
from pipesched.schedules import Schedule

_ADVICE = "give backward_input_s and backward_weight_s of every layer (B is then their sum), or `input_share=0.5`"


@dataclass(frozen=True, slots=True)
class LayerCosts(CostSource):
    """The costs of every layer of a model, for one micro-batch.

    Attributes:
        layers: ``layers[k]`` is the cost of layer ``k`` as a stage.
        origin: Source of the numbers, in a few words.
        overlap: Share of the shorter op of an Overlap that hides behind the longer, as in `StageCosts`.
        unitless: Columns of seconds without a unit in the table that was read, or empty.
        names: One per layer, for tables; empty if the layers have no names.
    """

    layers: tuple[StageCost, ...]
    origin: str = ""
    overlap: float = 0.0
    unitless: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    way_to_profile: ClassVar[str] = (
        "make one of a table of layers, with pipesched.workflows.measuring.profile_of_layers"
    )

    @property
    def given(self) -> Mapping[str, object]:
        return {"layers": self.layers}

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def weights_of_layers(self) -> tuple[int, ...]:
        return tuple(layer.weight_bytes for layer in self.layers)

    def seconds_of_layers(self, microbatch_size: int | None = None) -> tuple[float, ...]:
        del microbatch_size
        return tuple(layer.both_s for layer in self.layers)

    def cost_of_layers(
        self, first: int, last: int, microbatch_size: int | None = None, num_sharing: int = 1
    ) -> StageCost:
        del microbatch_size, num_sharing
        return added_up(self.layers[first:last])

    def costs_of_layers(
        self, bounds: Sequence[tuple[int, int]], microbatch_size: int | None = None, num_sharing: int = 1
    ) -> StageCosts:
        """Return the costs of the stages: sums over their layers, and the output bytes of their last layers.

        Raises:
            ProfileError: The bounds cover another number of layers.
        """
        del microbatch_size, num_sharing
        if bounds[-1][1] != len(self.layers):
            raise ProfileError(
                f"costs ({self.origin or 'of layers'}): got {len(self.layers)} layers, expected {bounds[-1][1]}, the "
                "layers of all stages; give the costs of every layer"
            )
        stages = tuple(added_up(self.layers[first:last]) for first, last in bounds)
        return StageCosts(stages, origin=self.origin, overlap=self.overlap, advice=_ADVICE)


@dataclass(frozen=True, slots=True)
class DeviceCost(CostSource):
    """The cost of one device's part of a model for one micro-batch; the stages of a device share it equally.

    With these costs, schedules that cut one model into different numbers of stages are comparable. The fields are as in
    `StageCost`; every stage has the output `output_bytes`.

    Attributes:
        overlap: Share of the shorter op of an Overlap that hides behind the longer, in [0, 1], as in `StageCosts`.
    """

    forward_s: float
    backward_s: float | None = None
    backward_input_s: float | None = None
    backward_weight_s: float | None = None
    step_s: float = 0.0
    copy_s: float = 0.0
    predict_s: float | None = None
    average_s: float = 0.0
    output_bytes: int = 0
    saved_bytes: int = 0
    saved_for_weight_bytes: int | None = None
    weight_bytes: int = 0
    optimizer_bytes: int = 0
    overlap: float = 0.0

    @property
    def given(self) -> Mapping[str, object]:
        return {"stages": (self,)}

    @property
    def device_seconds(self) -> Mapping[str, float]:
        seconds = {"F": self.forward_s, "B": self.backward_s, "I": self.backward_input_s, "W": self.backward_weight_s}
        return {phase: phase_s for phase, phase_s in seconds.items() if phase_s is not None}

    def stage_costs(
        self, schedule: Schedule, bounds: Sequence[tuple[int, int]] = (), microbatch_size: int | None = None
    ) -> StageCosts:
        """Return the costs of the stages of `schedule`: equal shares of the device."""
        del bounds, microbatch_size
        known: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        del known["overlap"]
        cost = StageCost(**known).scaled(float(schedule.stage_share), ADDED_UP)
        return StageCosts((cost,) * schedule.num_stages, origin="uniform", overlap=self.overlap)
