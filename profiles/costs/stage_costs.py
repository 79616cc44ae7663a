"""Stage costs: the seconds and bytes of every op of a stage, for one micro-batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, assert_never

from pipesched.profiles import ProfileError, require_count
from pipesched.profiles.costs.message_sizes import Compression
from pipesched.schedules.ops import Average, Compute, Message, Overlap, Phase, Step, WorkOp
from pipesched.schedules.weights import looks_ahead

_SECONDS = (
    "forward_s", "backward_s", "backward_input_s", "backward_weight_s", "recompute_s", "step_s", "copy_s", "predict_s",
    "average_s",
)  # fmt: skip
"""The fields with seconds of a stage."""
ADDED_UP = (*_SECONDS, "saved_bytes", "saved_for_weight_bytes", "weight_bytes", "optimizer_bytes")
"""The fields that are summed over neighbouring stages or layers of one stage."""
_ADVICE = "give backward_s for B, backward_input_s and backward_weight_s for I and W, or `input_share=0.5`"


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage on one micro-batch.

    Attributes:
        forward_s: Seconds of F.
        backward_s: Seconds of B (default: the sum of the two below).
        backward_input_s: Seconds of I, or None if unknown.
        backward_weight_s: Seconds of W, or None if unknown.
        step_s: Seconds of one optimizer step.
        output_bytes: Bytes of the activation sent to the next stage, and of its gradient.
        saved_bytes: Bytes held from F to the end of B or I of one micro-batch, the stage's input included (M_B of
            arXiv:2401.10241).
        weight_bytes: Bytes of one version of the weights; the gradients take the same again.
        optimizer_bytes: Bytes of the optimizer's state.
        utilisation: Share of the device that the stage's ops can use at this micro-batch size, in (0, 1].
        saved_for_weight_bytes: Bytes held from the end of I to the end of W (M_W of arXiv:2401.10241); None for
            `saved_bytes`, if only W frees the bytes that F saved.
        copy_s: Seconds of one copy of the weights: a version that a Step keeps for later.
        average_s: Seconds of one elastic averaging with the reference model.
        predict_s: Seconds of one copy of the weights that is predicted for an op (default: `copy_s`).
        output_is_saved: Whether `saved_bytes` includes the output, so that sending it takes no more memory.
        recompute_s: Seconds of R (default: `forward_s`).
        working_bytes: Peak memory of B or I while it runs, besides its inputs.
    """

    forward_s: float
    backward_s: float | None = None
    backward_input_s: float | None = None
    backward_weight_s: float | None = None
    step_s: float = 0.0
    output_bytes: int = 0
    saved_bytes: int = 0
    weight_bytes: int = 0
    optimizer_bytes: int = 0
    utilisation: float = 1.0
    saved_for_weight_bytes: int | None = None
    copy_s: float = 0.0
    average_s: float = 0.0
    predict_s: float | None = None
    output_is_saved: bool = False
    recompute_s: float | None = None
    working_bytes: int = 0

    @property
    def whole_backward_s(self) -> float | None:
        """Seconds of B, in one pass or as I and W, or None if unknown."""
        if self.backward_s is None and self.backward_input_s is not None and self.backward_weight_s is not None:
            return self.backward_input_s + self.backward_weight_s
        return self.backward_s

    def said(self, name: str) -> Any:
        """Return a field with its default in place of None, or None if it is unknown."""
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
        return None

    @property
    def both_s(self) -> float:
        """Forward and whole backward [s]; an unknown backward counts as 0."""
        return self.forward_s + (self.whole_backward_s or 0.0)

    def slowed(self, factor: float) -> StageCost:
        """Return the stage with the seconds of all its work times `factor`."""
        seconds: dict[str, Any] = {name: _times(getattr(self, name), factor) for name in _SECONDS}
        return replace(self, **seconds)


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
        workings: Working memory of the backward of each.
        saved: Saved bytes of each.
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


class WorkPiece(NamedTuple):
    """A part of an op with constant use of its device.

    Attributes:
        seconds: Seconds on an otherwise idle device of speed 1 [s].
        utilisation: Share of the device that it can use.
    """

    seconds: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class StageCosts:
    """The costs of every stage of a model.

    Attributes:
        stages: ``stages[s]`` is the cost of stage ``s``.
        microbatch_size: Samples in one micro-batch, or None if unknown.
        origin: Where the numbers come from, in a few words.
        overlap: Share of the shorter op of an Overlap that hides behind the longer, in [0, 1]. 0: one runs after the
            other, as in PyTorch's runtime; 1: the pair takes as long as the longer.
        compression: Compression of the messages between stages, or None. F, B and I then convert their input and their
            output, also if both stages are on one rank.
        advice: Advice for the error about an op without seconds.
        unitless: Columns of seconds without a unit in the table that was read, or empty.
    """

    stages: tuple[StageCost, ...]
    microbatch_size: int | None = None
    origin: str = ""
    overlap: float = 0.0
    compression: Compression | None = None
    advice: str = _ADVICE
    unitless: tuple[str, ...] = ()

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def has_bytes(self) -> bool:
        """Whether the sizes of messages or memory are known for any stage."""
        return any(
            cost.output_bytes or cost.saved_bytes or cost.weight_bytes or cost.optimizer_bytes or cost.working_bytes
            for cost in self.stages
        )

    def of_share(self, share: float) -> StageCosts:
        """Return the costs of a micro-batch of `share` of the samples, in proportion; a Step is unchanged."""
        stages = [
            replace(
                cost,
                forward_s=cost.forward_s * share,
                backward_s=_times(cost.backward_s, share),
                backward_input_s=_times(cost.backward_input_s, share),
                backward_weight_s=_times(cost.backward_weight_s, share),
                recompute_s=_times(cost.recompute_s, share),
                output_bytes=round(cost.output_bytes * share),
                working_bytes=round(cost.working_bytes * share),
                saved_bytes=round(cost.saved_bytes * share),
                saved_for_weight_bytes=None
                if cost.saved_for_weight_bytes is None
                else round(cost.saved_for_weight_bytes * share),
            )
            for cost in self.stages
        ]
        return replace(self, stages=tuple(stages))

    def message_bytes(self, message: Message) -> int:
        """Return the size of `message` in transit."""
        num_bytes = self.stages[message.origin].output_bytes
        return num_bytes if self.compression is None else self.compression.message_bytes(num_bytes)

    def seconds(self, op: WorkOp, *, copies: bool = False) -> float:
        """Return the duration of `op` on an otherwise idle device of speed 1 [s]; arguments as in `pieces`.

        Raises:
            ProfileError: The costs do not have its seconds.
        """
        return sum(piece.seconds for piece in self.pieces(op, copies=copies))

    def pieces(self, op: WorkOp, *, copies: bool = False) -> tuple[WorkPiece, ...]:
        """Return the pieces of work of `op` on its device, in order.

        Args:
            op: A Compute includes the prediction of its weights, if they are predicted, and the conversion of its
                messages, if they are compressed.
            copies: Whether a Step keeps a copy of the weights that it replaces.

        Raises:
            ProfileError: The costs do not have its seconds.
        """
        if isinstance(op, Overlap):
            return self.beside(*self.pieces(op.first), *self.pieces(op.second))
        cost = self._stage(op)
        match op:
            case Compute():
                seconds = self._compute_s(op, cost)
            case Step():
                seconds = cost.step_s + (cost.copy_s if copies else 0.0)
            case Average():
                seconds = cost.average_s
            case _:
                assert_never(op)
        return (WorkPiece(seconds, cost.utilisation),)

    def beside(self, first: WorkPiece, second: WorkPiece) -> tuple[WorkPiece, WorkPiece, WorkPiece]:
        """Return the pieces of an Overlap: both ops at once, then the rest of the first, and of the second."""
        both_s = self.overlap * min(first.seconds, second.seconds)
        return (
            WorkPiece(both_s, min(1.0, first.utilisation + second.utilisation)),
            WorkPiece(first.seconds - both_s, first.utilisation),
            WorkPiece(second.seconds - both_s, second.utilisation),
        )

    def _stage(self, op: Compute | Step | Average) -> StageCost:
        if not 0 <= op.stage < len(self.stages):
            raise ProfileError(
                f"op {op}: no cost for stage {op.stage}, the costs ({self.origin}) have {len(self.stages)} stages"
            )
        return self.stages[op.stage]

    def _compute_s(self, op: Compute, cost: StageCost) -> float:
        match op.phase:
            case Phase.FORWARD:
                seconds: float | None = cost.forward_s
            case Phase.RECOMPUTE:
                seconds = cost.forward_s if cost.recompute_s is None else cost.recompute_s
            case Phase.BACKWARD:
                seconds = cost.whole_backward_s
            case Phase.BACKWARD_INPUT:
                seconds = cost.backward_input_s
            case Phase.BACKWARD_WEIGHT:
                seconds = cost.backward_weight_s
        if seconds is None:
            raise ProfileError(
                f"op {op}: the costs ({self.origin}) do not say the seconds of {op.phase.value} on stage {op.stage}; "
                f"{self.advice}"
            )
        seconds += self._convert_s(op)
        if not looks_ahead(op):
            return seconds
        return seconds + (cost.copy_s if cost.predict_s is None else cost.predict_s)

    def _convert_s(self, op: Compute) -> float:
        """Return the conversion time of an op: of the tensors at both ends of the stage, one in and one out."""
        if self.compression is None or op.phase in (Phase.RECOMPUTE, Phase.BACKWARD_WEIGHT):
            return 0.0
        ends = (op.stage - 1, op.stage if op.stage < len(self.stages) - 1 else -1)
        return sum(self.compression.convert_s(self.stages[end].output_bytes) for end in ends if end >= 0)


def shared_slowdown(num_pipelines: int, utilisation: float) -> float:
    """Return the slowdown of an op while the same op of all pipelines runs on its device.

    Args:
        num_pipelines: Equal pipelines that share the device, the op's own included.
        utilisation: Share of the device that one of these ops can use, in (0, 1].
    """
    return max(1.0, num_pipelines * utilisation)


def _times(seconds: float | None, share: float) -> float | None:
    return None if seconds is None else seconds * share


def uniform(
    num_stages: int,
    forward_s: float,
    backward_s: float | None = None,
    backward_input_s: float | None = None,
    backward_weight_s: float | None = None,
    overlap: float = 0.0,
) -> StageCosts:
    """Return equal stages without messages and memory.

    Raises:
        ProfileError: `num_stages` is invalid.
    """
    cost = StageCost(forward_s, backward_s, backward_input_s, backward_weight_s)
    return StageCosts((cost,) * require_count("num_stages", num_stages), origin="uniform", overlap=overlap)
