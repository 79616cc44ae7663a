"""The interface of costs of any kind, and costs of stages, which evaluators read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple, Self, assert_never

from pipesched.profiles import FLOAT32_BYTES, ProfileError, require_count
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs.layer_graph import LayerGraph
from pipesched.profiles.costs.sample_work import SampleWork, TrainingRates
from pipesched.profiles.costs.single_stage import OF_SAMPLES, StageCost
from pipesched.profiles.costs.spread import Variation
from pipesched.schedules import Schedule, Yardstick
from pipesched.schedules.ops import AnyWeightsOp, Average, Compute, Message, Overlap, Payload, Phase, Step, WorkOp
from pipesched.schedules.weights import looks_ahead

HEADER_BYTES = 8
"""Header of a compressed message, before its elements [bytes]."""
_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Compression:
    """Activations and their gradients in half precision, after a header of 8 bytes.

    Tensors that get no gradient, such as masks and integers, are not converted.

    Attributes:
        element_bytes: Bytes of an uncompressed element; elements of 2 bytes or fewer are not converted.
        convert_bytes_per_s: Conversion throughput of a device in uncompressed bytes per second; None for free
            conversion.
    """

    element_bytes: int = FLOAT32_BYTES
    convert_bytes_per_s: float | None = None

    def message_bytes(self, num_bytes: int) -> int:
        """Return the size of the message of a tensor of `num_bytes`; an empty tensor stays empty."""
        if self.element_bytes <= _HALF_BYTES or not num_bytes:
            return num_bytes
        return head_bytes(num_bytes, self.element_bytes)

    def convert_s(self, num_bytes: int) -> float:
        """Return the conversion time of one end for a tensor of `num_bytes` [s]."""
        if self.element_bytes <= _HALF_BYTES or self.convert_bytes_per_s is None:
            return 0.0
        return num_bytes / self.convert_bytes_per_s


def head_bytes(num_bytes: int, element_bytes: int) -> int:
    """Return the size of a tensor of `num_bytes` with elements in half precision, header included."""
    return HEADER_BYTES + -(-num_bytes * _HALF_BYTES // element_bytes)


_ADVICE = "give backward_s for B, backward_input_s and backward_weight_s for I and W, or `input_share=0.5`"


class CostSource:
    """Costs of stages, of layers, of a device, of a profile, or of runs.

    Each kind of costs overrides the defaults below. A dataclass field with the name of a property below needs a
    default, because the property would be its default otherwise.

    Attributes:
        is_measured: Whether a measurement gave the seconds, so that their variation may be known.
        has_machines: Whether the costs come with the overheads of their machines.
        way_to_profile: Advice to make a profile of such costs, or empty if there is no way.
    """

    __slots__ = ()

    is_measured: ClassVar[bool] = False
    has_machines: ClassVar[bool] = False
    way_to_profile: ClassVar[str] = ""

    def stage_costs(
        self, schedule: Schedule, bounds: Sequence[tuple[int, int]] = (), microbatch_size: int | None = None
    ) -> StageCosts:
        """Return the costs of the stages of `schedule`.

        Args:
            schedule: Gives the number of stages.
            bounds: (first, last) layers of each stage, last exclusive, for costs of layers.
            microbatch_size: Samples of a micro-batch, for a profile (default: the smallest measured size).

        Raises:
            ProfileError: The costs do not fit the stages, or a profile does not cover the size.
        """
        return self.costs_of_layers(bounds, microbatch_size, schedule.ranks_per_device)

    @property
    def origin(self) -> str:
        """Source of the numbers, in a few words, or empty."""
        return ""

    @property
    def given(self) -> Mapping[str, object]:
        """Costs that a user wrote and that need a check, by field; empty for a checked file or a measurement."""
        return {}

    @property
    def device_seconds(self) -> Mapping[str, float]:
        """The seconds of each phase on a device whose stages share them equally; empty for other kinds of costs."""
        return {}

    @property
    def num_layers(self) -> int:
        """The number of layers that can be cut into stages; 0 for costs of stages."""
        return 0

    def costs_of_layers(
        self, bounds: Sequence[tuple[int, int]], microbatch_size: int | None = None, num_sharing: int = 1
    ) -> StageCosts:
        """Return the costs of the stages with these layers; only for costs of layers.

        Args:
            bounds: (first, last) layers of each stage, last exclusive, in order and without gaps.
            microbatch_size: Samples of a micro-batch, for a profile (default: the smallest measured size).
            num_sharing: Ranks on each device, for a profile.

        Raises:
            ProfileError: The bounds do not cover the layers, or a profile does not cover the size.
        """
        raise NotImplementedError

    def cost_of_layers(
        self, first: int, last: int, microbatch_size: int | None = None, num_sharing: int = 1
    ) -> StageCost:
        """Return the cost of layers `first` to `last` (exclusive) as one stage, as in `costs_of_layers`."""
        raise NotImplementedError

    def tied_sum(self, bounds: Sequence[tuple[int, int]]) -> tuple[int, tuple[int, ...]]:
        """Return the bytes and the stages of the sum of tied gradients, as in `StageCosts`; 0 without ties."""
        del bounds
        return 0, ()

    def seconds_of_layers(self, microbatch_size: int | None = None) -> tuple[float, ...]:
        """Return forward plus backward of every layer [s], for `balanced_partition`; empty for costs of stages.

        Raises:
            ProfileError: A profile does not cover the size.
        """
        del microbatch_size
        return ()

    @property
    def weights_of_layers(self) -> tuple[int, ...]:
        """Bytes of the weights of every layer; empty for costs of stages."""
        return ()

    @property
    def graph(self) -> LayerGraph | None:
        """The edges between the layers of a profile if they are nodes of a graph, or None."""
        return None

    def in_order(self, order: Sequence[int], arranged_for: int | None = None) -> Self:
        """Return the costs with the layers of their graph in another order; only for costs with a graph.

        Args:
            order: All layers, each after the layers that it reads.
            arranged_for: Number of stages for which the order was chosen, or None.
        """
        raise NotImplementedError

    @property
    def model_name(self) -> str | None:
        """The name of the model of a profile, or None for other costs."""
        return None

    @property
    def microbatch_sizes(self) -> tuple[int, ...]:
        """The measured sizes of a profile [samples], rising; empty for costs of one micro-batch."""
        return ()

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of a message."""
        return FLOAT32_BYTES

    @property
    def gpus_per_device(self) -> int:
        """The number of GPUs that share every layer, and are one device."""
        return 1

    @property
    def is_recomputed(self) -> bool:
        """Whether the backward of every layer contains its recomputation, so that an R would count it twice."""
        return False

    @property
    def sample_work(self) -> SampleWork | None:
        """The work of a sample of an estimated profile, or None for other costs."""
        return None

    @property
    def gpu_family(self) -> str | None:
        """The family of the GPU of an estimated profile, as ``A100``, or None for other costs, or if unknown."""
        return None

    @property
    def fit_factor(self) -> float:
        """The factor by which the seconds of an estimated profile were scaled to fit a run; 1 for other costs."""
        return 1.0

    def training_rates(self, num_samples: int, seconds: float, num_devices: int) -> TrainingRates | None:
        """Return the rates of one GPU in a training step, or None for costs without `sample_work`.

        Args:
            num_samples: Samples of one data-parallel copy of each stage in a step.
            seconds: Seconds of the step.
            num_devices: Number of devices.

        Raises:
            ProfileError: The GPU would exceed its peak.
        """
        del num_samples, seconds, num_devices
        return None

    @property
    def measured_cpu(self) -> str:
        """Name of the CPU on which a profile was measured; empty for other costs."""
        return ""

    @property
    def variation(self) -> Variation | None:
        """The variation of the seconds, or None if unknown."""
        return None

    @property
    def yardstick(self) -> Yardstick | None:
        """The speed of the machine that measured the costs, or None if unknown."""
        return None

    @property
    def unitless(self) -> tuple[str, ...]:
        """Columns of seconds without a unit in the table that was read, or empty."""
        return ()

    def on_machines(self, cluster: Cluster) -> Cluster:
        """Return `cluster`; costs of runs add the overheads of the runs."""
        return cluster


class WorkPiece(NamedTuple):
    """A part of an op with constant use of its device.

    Attributes:
        seconds: Seconds on an otherwise idle device of speed 1.
        utilisation: Share of the device that the part can use.
    """

    seconds: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class StageCosts(CostSource):
    """The costs of every stage of a model.

    Attributes:
        stages: ``stages[s]`` is the cost of stage ``s``.
        microbatch_size: Samples in one micro-batch, or None if unknown.
        origin: Source of the numbers, in a few words.
        overlap: Share of the shorter op of an Overlap that hides behind the longer, in [0, 1]. 0: one runs after the
            other, as in PyTorch's runtime; 1: the pair takes as long as the longer.
        compression: Compression of the messages between stages, or None. With compression, F, B and I convert their
            input and their output, also if both stages are on one rank.
        advice: Advice for the error about an op without seconds.
        unitless: Columns of seconds without a unit in the table that was read, or empty.
        tied_bytes: Bytes of the gradient that `tied_stages` sum, for weights that they share.
        tied_stages: Stages that share weights, in ascending order; empty for the first and the last.
    """

    stages: tuple[StageCost, ...]
    microbatch_size: int | None = None
    origin: str = ""
    overlap: float = 0.0
    compression: Compression | None = None
    advice: str = _ADVICE
    unitless: tuple[str, ...] = ()
    tied_bytes: int = 0
    tied_stages: tuple[int, ...] = ()

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def given(self) -> Mapping[str, object]:
        return {"stages": self.stages}

    def stage_costs(
        self, schedule: Schedule, bounds: Sequence[tuple[int, int]] = (), microbatch_size: int | None = None
    ) -> StageCosts:
        """Return these costs, for any schedule."""
        del schedule, bounds, microbatch_size
        return self

    @property
    def has_bytes(self) -> bool:
        """Whether the sizes of messages or memory are known for any stage."""
        return any(
            cost.output_bytes or cost.saved_bytes or cost.weight_bytes or cost.optimizer_bytes or cost.working_bytes
            for cost in self.stages
        )

    def of_share(self, share: float) -> StageCosts:
        """Return the costs of a micro-batch of `share` of the samples, in proportion; a Step is unchanged."""
        return replace(self, stages=tuple(cost.scaled(share, OF_SAMPLES) for cost in self.stages))

    def value_bytes(self, message: Message) -> int:
        """Return the size of the value of `message`: of an activation, or of its gradient."""
        cost = self.stages[message.origin]
        if message.payload is Payload.ACTIVATION:
            return cost.output_bytes
        num_bytes: int = cost.said("output_gradient_bytes")
        return num_bytes

    def message_bytes(self, message: Message) -> int:
        """Return the size of `message` in transit."""
        num_bytes = self.value_bytes(message)
        if self.compression is None:
            return num_bytes
        converted_bytes: int = min(num_bytes, self.stages[message.origin].said("output_gradient_bytes"))
        return self.compression.message_bytes(converted_bytes) + num_bytes - converted_bytes

    def seconds(self, op: WorkOp, *, copies: bool = False) -> float:
        """Return the duration of `op` on an otherwise idle device of speed 1 [s]; arguments as in `pieces`.

        Raises:
            ProfileError: The costs have no seconds for the op.
        """
        return sum(piece.seconds for piece in self.pieces(op, copies=copies))

    def pieces(self, op: WorkOp, *, copies: bool = False) -> tuple[WorkPiece, ...]:
        """Return the pieces of work of `op` on its device, in order.

        Args:
            op: The op. The work of a Compute includes the prediction of its weights and the conversion of its messages,
                if there are any.
            copies: Whether a Step keeps a copy of the weights that it replaces.

        Raises:
            ProfileError: The costs have no seconds for the op.
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

    def _stage(self, op: Compute | AnyWeightsOp) -> StageCost:
        if not 0 <= op.stage < len(self.stages):
            raise ProfileError(
                f"op {op}: got stage {op.stage}, expected stages 0 to {len(self.stages) - 1}, the stages of the costs "
                f"({self.origin}); give the costs of every stage"
            )
        return self.stages[op.stage]

    def _compute_s(self, op: Compute, cost: StageCost) -> float:
        match op.phase:
            case Phase.FORWARD:
                seconds: float | None = cost.forward_s
            case Phase.RECOMPUTE:
                seconds = cost.said("recompute_s")
            case Phase.BACKWARD:
                seconds = cost.whole_backward_s
            case Phase.BACKWARD_INPUT:
                seconds = cost.backward_input_s
            case Phase.BACKWARD_WEIGHT:
                seconds = cost.backward_weight_s
        if seconds is None:
            raise ProfileError(
                f"op {op}: got no seconds of {op.phase.value} on stage {op.stage} in the costs ({self.origin}), "
                f"expected seconds for this op; {self.advice}"
            )
        seconds += self._convert_s(op)
        return seconds + cost.said("predict_s") if looks_ahead(op) else seconds

    def _convert_s(self, op: Compute) -> float:
        """Return the conversion time of an op: of the tensors at both ends of the stage, one in and one out."""
        if self.compression is None or op.phase in (Phase.RECOMPUTE, Phase.BACKWARD_WEIGHT):
            return 0.0
        ends = (op.stage - 1, op.stage if op.stage < len(self.stages) - 1 else -1)
        return sum(
            self.compression.convert_s(self.stages[end].said("output_gradient_bytes")) for end in ends if end >= 0
        )


def shared_slowdown(num_pipelines: int, utilisation: float) -> float:
    """Return the slowdown of an op while the same op of all pipelines runs on its device.

    Args:
        num_pipelines: Equal pipelines that share the device, the op's own included.
        utilisation: Share of the device that one of these ops can use, in (0, 1].
    """
    return max(1.0, num_pipelines * utilisation)


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


def stages_of_layers(
    layers: CostSource, microbatch_size: int | None = None, num_sharing: int = 1
) -> Callable[[Sequence[tuple[int, int]]], StageCosts]:
    """Return a function that returns the costs of stages from their bounds; it computes each stage once.

    Args:
        layers: Costs of all layers.
        microbatch_size: Samples of a micro-batch, with a profile (default: the smallest measured size).
        num_sharing: Ranks on each device, with a profile.

    Raises:
        ProfileError: The profile does not cover the size.
    """
    costs = layers.costs_of_layers(((0, layers.num_layers),), microbatch_size, num_sharing)

    @cache
    def stage_of(first: int, last: int) -> StageCost:
        return layers.cost_of_layers(first, last, microbatch_size, num_sharing)

    def stages_of(bounds: Sequence[tuple[int, int]]) -> StageCosts:
        stages = tuple([stage_of(first, last) for first, last in bounds])
        tied_bytes, tied_stages = layers.tied_sum(bounds)
        return replace(costs, stages=stages, tied_bytes=tied_bytes, tied_stages=tied_stages)

    return stages_of
