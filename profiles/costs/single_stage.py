"""The seconds and bytes of one stage, or of one layer, for one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipesched.schedules.common import Bytes, PositiveShare, Seconds

_SECONDS = (
    "forward_s", "backward_s", "backward_input_s", "backward_weight_s", "recompute_s", "step_s", "copy_s", "predict_s",
    "average_s",
)  # fmt: skip
"""The fields with seconds of a stage."""
ADDED_UP = (
    *_SECONDS, "unshard_s", "saved_bytes", "saved_for_weight_bytes", "weight_bytes", "optimizer_bytes",
    "gradient_bytes", "kept_gradient_bytes",
)  # fmt: skip
"""The fields that are summed over neighbouring stages or layers of one stage."""
OF_SAMPLES = (
    "forward_s", "backward_s", "backward_input_s", "backward_weight_s", "recompute_s", "output_bytes",
    "output_gradient_bytes", "working_bytes", "saved_bytes", "saved_for_weight_bytes",
)  # fmt: skip
"""The fields in proportion to the samples of a micro-batch."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage on one micro-batch.

    Attributes:
        forward_s: Seconds of F.
        backward_s: Seconds of B (default: I plus W).
        backward_input_s: Seconds of I, or None if unknown.
        backward_weight_s: Seconds of W, or None if unknown.
        step_s: Seconds of one optimizer step.
        output_bytes: Bytes of the activation sent to the next stage, and by default of its gradient.
        saved_bytes: Bytes held from F to the end of B or I of one micro-batch, the stage's input included (M_B of
            arXiv:2401.10241).
        weight_bytes: Bytes of one version of the weights.
        optimizer_bytes: Bytes of the optimizer's state.
        utilisation: Share of the device that the stage's ops can use at this micro-batch size, in (0, 1].
        saved_for_weight_bytes: Bytes held from the end of I to the end of W (M_W of arXiv:2401.10241); None if I
            frees no bytes, so that W holds `saved_bytes`.
        copy_s: Seconds of one copy of the weights: a version that a Step keeps for later.
        average_s: Seconds of one elastic averaging with the reference model.
        predict_s: Seconds of one copy of the weights that is predicted for an op (default: `copy_s`).
        output_is_saved: Whether `saved_bytes` includes the output, so that sending it takes no more memory.
        recompute_s: Seconds of R (default: `forward_s`).
        working_bytes: Peak memory of B or I while it runs, besides its inputs.
        gradient_bytes: Bytes of the gradients from the first B or W to the Step (default: `weight_bytes`).
        unshard_s: Seconds of Unshard, a gather of sharded weights; F and B do not contain them.
        kept_gradient_bytes: Bytes of gradients that are held always; a part of `optimizer_bytes`.
        output_gradient_bytes: Bytes of the gradient of the output (default: `output_bytes`); fewer if some tensors of
            the output, such as masks, get no gradient.
    """

    forward_s: Seconds
    backward_s: Seconds | None = None
    backward_input_s: Seconds | None = None
    backward_weight_s: Seconds | None = None
    step_s: Seconds = 0.0
    output_bytes: Bytes = 0
    saved_bytes: Bytes = 0
    weight_bytes: Bytes = 0
    optimizer_bytes: Bytes = 0
    utilisation: PositiveShare = 1.0
    saved_for_weight_bytes: Bytes | None = None
    copy_s: Seconds = 0.0
    average_s: Seconds = 0.0
    predict_s: Seconds | None = None
    output_is_saved: bool = False
    recompute_s: Seconds | None = None
    working_bytes: Bytes = 0
    gradient_bytes: Bytes | None = None
    unshard_s: Seconds = 0.0
    kept_gradient_bytes: Bytes = 0
    output_gradient_bytes: Bytes | None = None

    @property
    def whole_backward_s(self) -> float | None:
        """Seconds of B, in one pass or as I and W, or None if unknown."""
        if self.backward_s is None and self.backward_input_s is not None and self.backward_weight_s is not None:
            return self.backward_input_s + self.backward_weight_s
        return self.backward_s

    def said(self, name: str) -> Any:
        """Return the value of a field, or of its default if the field is None; None if both are unknown."""
        value = getattr(self, name)
        if value is not None:
            return value
        match name:
            case "backward_s":
                return self.whole_backward_s
            case "recompute_s":
                return self.forward_s
            case "predict_s":
                return self.copy_s
            case "saved_for_weight_bytes":
                return self.saved_bytes
            case "gradient_bytes":
                return self.weight_bytes
            case "output_gradient_bytes":
                return self.output_bytes
        return None

    @property
    def both_s(self) -> float:
        """Forward and whole backward [s]; an unknown backward counts as 0."""
        return self.forward_s + (self.whole_backward_s or 0.0)

    def slowed(self, factor: float) -> StageCost:
        """Return the stage with the seconds of all its work times `factor`."""
        return self.scaled(factor, _SECONDS)

    def scaled(self, factor: float, names: Sequence[str]) -> StageCost:
        """Return the stage with the fields `names` times `factor`; None is unchanged, and bytes are rounded."""
        known = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        products: dict[str, Any] = {name: value * factor for name, value in known.items()}
        return replace(self, **{name: round(n) if name.endswith("_bytes") else n for name, n in products.items()})


def added_up(costs: Sequence[StageCost]) -> StageCost:
    """Return neighbouring stages, or layers, as one stage, with the output of the last of them."""
    if len(costs) == 1:
        return costs[0]
    sums: dict[str, Any] = {}
    for name in ADDED_UP:
        values = [cost.said(name) for cost in costs]
        is_said = any(getattr(cost, name) is not None for cost in costs)
        sums[name] = sum(values) if is_said and None not in values else None
    sums["working_bytes"] = working_bytes([cost.working_bytes for cost in costs], [cost.saved_bytes for cost in costs])
    return replace(costs[-1], **sums)


def working_bytes(workings: Sequence[int], saved: Sequence[int]) -> int:
    """Return the working memory of the backward of neighbouring stages, or layers, as one, besides its inputs.

    The backward runs from the last to the first; each frees its saved bytes before the next one runs.

    Args:
        workings: Working memory of the backward of each stage or layer [bytes].
        saved: Saved bytes of each stage or layer.
    """
    most = gone = 0
    for working, kept in zip(reversed(workings), reversed(saved), strict=True):
        most = max(most, working - gone)
        gone += kept
    return most


def with_input_share(stages: Sequence[StageCost], input_share: float) -> list[StageCost]:
    """Return all stages, with an assumed I and W where unknown; the first stage has no I, so its W is all of B.

    Args:
        stages: The stages, in order.
        input_share: Share of B spent on I, from 0 to 1.
    """
    shares = [0.0, *[input_share] * (len(stages) - 1)]
    return [_split(cost, share) for cost, share in zip(stages, shares, strict=True)]


def _split(cost: StageCost, input_share: float) -> StageCost:
    if cost.backward_s is None or cost.backward_input_s is not None or cost.backward_weight_s is not None:
        return cost
    input_s = input_share * cost.backward_s
    return replace(cost, backward_input_s=input_s, backward_weight_s=cost.backward_s - input_s)
