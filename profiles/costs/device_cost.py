"""The cost of a device's share of a model with equal stages, independent of the number of stages per device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipesched.profiles.costs.single_stage import StageCost
from pipesched.profiles.costs.stage_costs import CostSource, StageCosts
from pipesched.schedules import Schedule


@dataclass(frozen=True, slots=True)
class DeviceCost(CostSource):
    """The cost of one device's part of a model for one micro-batch; the stages of a device share it equally.

    So two schedules that cut one model into different numbers of stages can be compared. The fields are as in
    `StageCost`; the output of every stage has `output_bytes`, wherever the model is cut.

    Attributes:
        overlap: The share of the shorter op of an Overlap that hides behind the longer, in [0, 1], as in `StageCosts`.
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
        """The cost of the device."""
        return {"stages": (self,)}

    @property
    def device_seconds(self) -> Mapping[str, float]:
        """The given seconds of F, B, I and W."""
        seconds = {"F": self.forward_s, "B": self.backward_s, "I": self.backward_input_s, "W": self.backward_weight_s}
        return {phase: phase_s for phase, phase_s in seconds.items() if phase_s is not None}

    def stage_costs(
        self, schedule: Schedule, bounds: Sequence[tuple[int, int]] = (), microbatch_size: int | None = None
    ) -> StageCosts:
        """Return the costs of the stages of `schedule`: equal shares of the device."""
        del bounds, microbatch_size
        share = float(schedule.stage_share)

        def seconds(device_s: float | None) -> float | None:
            return None if device_s is None else device_s * share

        cost = StageCost(
            forward_s=self.forward_s * share,
            backward_s=seconds(self.backward_s),
            backward_input_s=seconds(self.backward_input_s),
            backward_weight_s=seconds(self.backward_weight_s),
            step_s=self.step_s * share,
            copy_s=self.copy_s * share,
            predict_s=seconds(self.predict_s),
            average_s=self.average_s * share,
            output_bytes=self.output_bytes,
            saved_bytes=round(self.saved_bytes * share),
            saved_for_weight_bytes=None
            if self.saved_for_weight_bytes is None
            else round(self.saved_for_weight_bytes * share),
            weight_bytes=round(self.weight_bytes * share),
            optimizer_bytes=round(self.optimizer_bytes * share),
        )
        return StageCosts((cost,) * schedule.num_stages, origin="uniform", overlap=self.overlap)
