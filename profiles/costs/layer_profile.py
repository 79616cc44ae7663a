"""The profile of a model: the costs of each layer, measured or estimated, and the costs of a stage of such layers.

Bytes are counted by storage, because autograd keeps storages. Neighbours often keep the same storage: the output of a
ReLU is the input of the next linear layer. So each layer records which of its two boundary tensors it keeps and the
bytes that it keeps besides, and `Profile.costs_of_layers` counts a storage once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Annotated, Any, ClassVar

from annotated_types import Len

from pipesched.profiles import ProfileError, element_bytes
from pipesched.profiles.costs.layer_graph import LayerGraph
from pipesched.profiles.costs.measurement import (
    LayerMeasurement,
    freed_bytes,
    output_is_saved,
    saved_bytes,
    saved_for_weight_bytes,
)
from pipesched.profiles.costs.provenance import Provenance
from pipesched.profiles.costs.sample_work import SampleWork, TrainingRates
from pipesched.profiles.costs.sharded_weights import NO_EXCHANGES, Beside, ShardedWeights
from pipesched.profiles.costs.single_stage import OF_SAMPLES, StageCost, working_bytes
from pipesched.profiles.costs.spread import SharingPrice, Variation, price_among
from pipesched.profiles.costs.stage_costs import CostSource, StageCosts
from pipesched.schedules import Schedule, Yardstick
from pipesched.schedules.columns import op_cells
from pipesched.schedules.common import Bytes, Count, Seconds, Text


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The work of a run on the weights of one layer, besides the optimizer step.

    Attributes:
        copy_s: Seconds of a copy of the weights, as for a version kept for later.
        predict_s: Seconds of a copy that is moved ahead by the rule of the optimizer.
        average_s: Seconds of elastic averaging: the update is sent, and the weights move towards the reference.
    """

    copy_s: Seconds
    predict_s: Seconds
    average_s: Seconds


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The profile of one layer: bytes of its weights, seconds and bytes at each micro-batch size.

    Attributes:
        name: Name of the layer.
        weight_bytes: Bytes of the layer's parameters.
        optimizer_bytes: Bytes of the optimizer's state for these parameters.
        step_s: Seconds of one optimizer step, zeroing the gradients included.
        measurements: Measurements by rising micro-batch size; the sizes are the same for every layer.
        work: Other work on the weights; None if unknown, where it counts as 0.
        gradient_bytes: Bytes of the gradients from the first backward to the Step (default: `weight_bytes`).
        sharded: Exchanges of weights that copies of the layer share, which no measurement contains; None if each copy
            has all weights.
        kept_gradient_bytes: Bytes of gradients that are held always; a part of `optimizer_bytes`.
    """

    name: Text
    weight_bytes: Bytes
    optimizer_bytes: Bytes
    step_s: Seconds
    measurements: Annotated[tuple[LayerMeasurement, ...], Len(1, 1000)]
    work: LayerWork | None = None
    gradient_bytes: Bytes | None = None
    sharded: ShardedWeights | None = None
    kept_gradient_bytes: Bytes = 0

    @property
    def said_gradient_bytes(self) -> int:
        """Bytes of the gradients; those of the weights if no other number is given."""
        return self.weight_bytes if self.gradient_bytes is None else self.gradient_bytes

    def without_weights(self, num_bytes: int) -> LayerCost:
        """Return the layer without `num_bytes` of its weights, and without their part of the step and its states."""
        share, work = 1 - min(1.0, num_bytes / self.weight_bytes) if self.weight_bytes else 1.0, self.work
        return replace(
            self,
            weight_bytes=round(self.weight_bytes * share),
            optimizer_bytes=round(self.optimizer_bytes * share),
            step_s=self.step_s * share,
            work=work and LayerWork(work.copy_s * share, work.predict_s * share, work.average_s * share),
            gradient_bytes=None if self.gradient_bytes is None else round(self.gradient_bytes * share),
            kept_gradient_bytes=round(self.kept_gradient_bytes * share),
        )


@dataclass(frozen=True, slots=True)
class LayerTie:
    """A weight that several layers share.

    Attributes:
        layers: The layers, in order.
        num_bytes: Bytes of the weight, and of its gradient.
    """

    layers: Annotated[tuple[Count, ...], Len(2, 100_000)]
    num_bytes: Bytes

    def stages(self, bounds: Sequence[tuple[int, int]]) -> list[int]:
        """Return the stages with some of the layers, given the half-open range of layers of each stage."""
        return [
            stage for stage, (first, last) in enumerate(bounds) if any(first <= layer < last for layer in self.layers)
        ]


_ADVICE = "if the profile is old, measure it again; or give `input_share=0.5`"
_TABLE_ADVICE = "give i_ms and w_ms of every layer in its table, or `input_share=0.5`"


@dataclass(frozen=True, slots=True)
class Profile(CostSource):
    """A profile: the costs of the layers of a model, measured or estimated.

    Attributes:
        model: The model's name, as `resolve_model` reads it.
        layers: The layers, in order.
        provenance: Device, settings and versions of the measurement or estimate.
        variation: Variation of the seconds of forward and backward of the whole model between runs; None if
            unknown, as after a single run.
        sharing: Slowdown of processes that share one core, by rising number of processes; empty if not measured.
        sample_work: Work of a sample and peak of the GPU, for rates of training; None for measured profiles.
        graph: The edges between the layers if they are nodes of a graph; None for a chain.
        ties: The weights that layers share, each measured in all of its layers.
        tied_bytes: Bytes of the gradient of weights that the first and the last layer share, as their stages sum it.
        is_tied: Whether the last layer has the weights of the first, and so none of its own if both are in one stage.
    """

    model: str
    layers: tuple[LayerCost, ...]
    provenance: Provenance
    variation: Variation | None = None
    sharing: tuple[SharingPrice, ...] = ()
    sample_work: SampleWork | None = None
    graph: LayerGraph | None = field(default=None, compare=False)
    ties: tuple[LayerTie, ...] = ()
    tied_bytes: int = 0
    is_tied: bool = False

    is_measured: ClassVar[bool] = True

    @property
    def microbatch_sizes(self) -> tuple[int, ...]:
        """The measured micro-batch sizes [samples], rising."""
        return tuple(measurement.microbatch_size for measurement in self.layers[0].measurements)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def weights_of_layers(self) -> tuple[int, ...]:
        return tuple(layer.weight_bytes for layer in self.layers)

    @property
    def model_name(self) -> str:
        return self.model

    @property
    def element_bytes(self) -> int:
        return element_bytes(self.provenance.dtype)

    @property
    def gpus_per_device(self) -> int:
        return 1 if self.provenance.sharding is None else self.provenance.sharding.num_gpus

    @property
    def gpu_family(self) -> str | None:
        return self.provenance.gpu_family

    @property
    def is_recomputed(self) -> bool:
        return self.provenance.sharding is not None and self.provenance.sharding.recompute == "full"

    @property
    def fit_factor(self) -> float:
        return 1.0 if self.provenance.sharding is None else self.provenance.sharding.fit_factor

    def training_rates(self, num_samples: int, seconds: float, num_devices: int) -> TrainingRates | None:
        if self.sample_work is None:
            return None
        copies = 1 if self.provenance.sharding is None else self.provenance.sharding.data
        return self.sample_work.rates(num_samples * copies, seconds, num_devices * self.gpus_per_device)

    @property
    def measured_cpu(self) -> str:
        """Name of the CPU that was measured; empty for a GPU and for estimates."""
        return self.provenance.device if self.provenance.kind == "cpu" and self.provenance.repeats else ""

    @property
    def yardstick(self) -> Yardstick | None:
        return self.provenance.yardstick

    def seconds_of_layers(self, microbatch_size: int | None = None) -> tuple[float, ...]:
        lower, upper, share = _around(self, microbatch_size)
        ends = [(layer.measurements[lower], layer.measurements[upper]) for layer in self.layers]
        return tuple(
            _line(low.forward_s, high.forward_s, share) + _line(low.backward_s, high.backward_s, share)
            for low, high in ends
        )

    def stage_costs(
        self, schedule: Schedule, bounds: Sequence[tuple[int, int]] = (), microbatch_size: int | None = None
    ) -> StageCosts:
        """Return the costs of the stages of `schedule`; its Unshards, if there are any, gather the sharded weights."""
        has_unshards = schedule.columns.counts[op_cells.UNSHARD] > 0
        return self.costs_of_layers(bounds, microbatch_size, schedule.ranks_per_device, has_unshards=has_unshards)

    def cost_of_layers(
        self,
        first: int,
        last: int,
        microbatch_size: int | None = None,
        num_sharing: int = 1,
        *,
        has_unshards: bool = False,
    ) -> StageCost:
        """Return the cost of layers `first` to `last` (exclusive) as one stage; see `costs_of_layers`.

        The stage's utilisation of a GPU is its throughput divided by the best throughput at any measured size. If the
        launches of the host take a larger share of the time, this share is the utilisation. On a CPU core the
        utilisation is 1.

        Raises:
            ProfileError: The profile does not cover the size.
        """
        lower, upper, share = _around(self, microbatch_size)
        layers = self.layers[first:last]
        cost = self._stage_cost(first, last, lower, has_unshards)
        if upper != lower:
            cost = _between(cost, self._stage_cost(first, last, upper, has_unshards), share)
        best = _best_throughput(layers) if self.provenance.kind == "cuda" else 0.0
        if best and cost.both_s:
            low_s, high_s = (sum(layer.measurements[at].launch_s or 0.0 for layer in layers) for at in (lower, upper))
            size = self.microbatch_sizes[0] if microbatch_size is None else microbatch_size
            share_used = max(_throughput(size, cost.both_s) / best, _line(low_s, high_s, share) / cost.both_s)
            cost = replace(cost, utilisation=min(1.0, share_used))
        return cost.slowed(price_among(self.sharing, num_sharing))

    def costs_of_layers(
        self,
        bounds: Sequence[tuple[int, int]],
        microbatch_size: int | None = None,
        num_sharing: int = 1,
        *,
        has_unshards: bool = False,
    ) -> StageCosts:
        """Sum the layers of each stage, linearly interpolated between the measured sizes around `microbatch_size`.

        Args:
            bounds: (first, last) layers of each stage, last exclusive, in order and without gaps.
            microbatch_size: Samples, between the smallest and the largest measured (default: the smallest).
            num_sharing: Ranks on each device; their work is slowed by the sharing price of the profile.
            has_unshards: Whether Unshards gather the sharded weights, not each F and B.

        Raises:
            ProfileError: The profile does not cover the size, or the bounds do not cover the layers.
        """
        _check_bounds(self, bounds)
        size = self.microbatch_sizes[0] if microbatch_size is None else microbatch_size
        stages = tuple(
            self.cost_of_layers(first, last, size, num_sharing, has_unshards=has_unshards) for first, last in bounds
        )
        origin = f"profile of {self.model} on {self.provenance.device}"
        if any(layer.work is None for layer in self.layers):
            origin += ", without copies of weights"
        price = price_among(self.sharing, num_sharing)
        if price != 1:
            origin += f", {price:.3g} times as long where {num_sharing} share a core"
        advice = _ADVICE if self.provenance.repeats else _TABLE_ADVICE
        tied_bytes, tied_stages = self.tied_sum(bounds)
        return StageCosts(stages, size, origin, advice=advice, tied_bytes=tied_bytes, tied_stages=tied_stages)

    def tied_sum(self, bounds: Sequence[tuple[int, int]]) -> tuple[int, tuple[int, ...]]:
        if self.tied_bytes or not self.ties:
            return self.tied_bytes if len(bounds) > 1 else 0, ()
        between = [(tie.num_bytes, stages) for tie in self.ties if len(stages := tie.stages(bounds)) > 1]
        return sum(num_bytes for num_bytes, _ in between), tuple(sorted({stage for _, its in between for stage in its}))

    def _stage_cost(self, first: int, last: int, index: int, has_unshards: bool) -> StageCost:
        """Sum layers `first` to `last` (exclusive) at the measured size number `index`, with their exchanges."""
        layers, sharding = self._held_layers(first, last), self.provenance.sharding
        if self.is_tied and 1 < len(layers) == len(self.layers):
            tied = replace(layers[-1], weight_bytes=0, optimizer_bytes=0, kept_gradient_bytes=0, step_s=0.0, work=None)
            layers = (*layers[:-1], tied)
        cost = _stage_cost(layers, index, is_first=first == 0)
        if sharding is None or all(layer.sharded is None for layer in layers):
            return cost
        exchanges = [layer.sharded or NO_EXCHANGES for layer in layers]
        if has_unshards:
            return _with_unshards(cost, exchanges)
        measured = [layer.measurements[index] for layer in layers]
        beside = Beside(sharding.hides_weights, sharding.hides_gradients)
        is_first, is_last = first == 0, last == len(self.layers)
        return _with_exchanges(cost, measured, exchanges, beside, is_first=is_first, is_last=is_last)

    def _held_layers(self, first: int, last: int) -> tuple[LayerCost, ...]:
        """Return layers `first` to `last` (exclusive); only the first of layers that share a weight has it."""
        layers = list(self.layers[first:last])
        for tie in self.ties:
            for layer in [layer - first for layer in tie.layers if first <= layer < last][1:]:
                layers[layer] = layers[layer].without_weights(tie.num_bytes)
        return tuple(layers)

    def covers(self, microbatch_size: int) -> bool:
        """Return whether a micro-batch size is covered: it was measured, or a smaller and a larger size were."""
        measurements = self.layers[0].measurements
        upper = bisect_left(measurements, microbatch_size, key=_size)
        return upper < len(measurements) and (upper > 0 or _size(measurements[0]) == microbatch_size)

    def in_order(self, order: Sequence[int], arranged_for: int | None = None) -> Profile:
        """Return the profile of a graph with its layers in another order, and the bytes that cross each of its cuts.

        Args:
            order: All layers, each after the layers that it reads.
            arranged_for: Number of stages for which the order was chosen, or None.
        """
        assert self.graph is not None, "the layers of any other profile have one order"
        graph = self.graph.reordered(order, arranged_for)
        layers = []
        for index, (before, after) in zip(order, pairwise(graph.cut_bytes()), strict=True):
            measurements = tuple(
                replace(measured, input_bytes=before, output_bytes=after, output_storage_bytes=after)
                for measured in self.layers[index].measurements
            )
            layers.append(replace(self.layers[index], measurements=measurements))
        return replace(self, layers=tuple(layers), graph=graph)


def _check_bounds(profile: Profile, bounds: Sequence[tuple[int, int]]) -> None:
    sizes = [last - first for first, last in bounds]
    if list(map(tuple, bounds)) != list(pairwise(accumulate(sizes, initial=0))) or min(sizes, default=0) < 1:
        got = ", ".join(f"{first} to {last}" for first, last in bounds[:8]) or "none"
        raise ProfileError(
            f"partition of {profile.model}: got layers {got} (exclusive), expected stages that follow each other from "
            "layer 0, of at least 1 layer each; use fewer stages"
        )
    if sum(sizes) != profile.num_layers:
        raise ProfileError(
            f"partition of {profile.model}: got {sum(sizes)} layers in all stages, expected {profile.num_layers}; make "
            "a partition for this model"
        )


def _around(profile: Profile, microbatch_size: int | None) -> tuple[int, int, float]:
    """Return the indices of the measured sizes below and above a size, and the position of the size between them.

    Without a size, the smallest counts. The position is 0 at the lower and 1 at the upper size.
    """
    if microbatch_size is None:
        return 0, 0, 0.0
    if not profile.covers(microbatch_size):
        sizes = profile.microbatch_sizes
        covered = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise ProfileError(
            f"profile of {profile.model}: `microbatch_size`: got {microbatch_size}, expected {covered}, the measured "
            "sizes; use one of them, or profile the model again with this one"
        )
    measurements = profile.layers[0].measurements
    upper = bisect_left(measurements, microbatch_size, key=_size)
    above = _size(measurements[upper])
    if above == microbatch_size:
        return upper, upper, 0.0
    below = _size(measurements[upper - 1])
    return upper - 1, upper, (microbatch_size - below) / (above - below)


_size = attrgetter("microbatch_size")


def _working_bytes(measured: Sequence[LayerMeasurement], gathered: Sequence[int] = ()) -> int:
    """Return the working memory of the backward of a stage; each layer but the last holds its output gradient.

    A layer frees its saved bytes at the end of its backward. It also frees its input, unless the layer before has saved
    it as an output.

    Args:
        measured: The measurement of each layer.
        gathered: Bytes of weights that are whole during the backward of each layer and no longer, or none.
    """
    if not gathered and all(m.working_bytes is None for m in measured):
        return 0
    handed = [*(m.said_output_gradient_bytes for m in measured[:-1]), 0]
    whole = gathered or [0] * len(measured)
    return working_bytes(
        [(m.working_bytes or 0) + sum(num_bytes) for m, *num_bytes in zip(measured, handed, whole, strict=True)],
        freed_bytes(measured),
    )


def _stage_cost(layers: Sequence[LayerCost], index: int, is_first: bool) -> StageCost:
    """Sum `layers` at the measured size number `index`."""
    measured = [layer.measurements[index] for layer in layers]
    work = [layer.work for layer in layers if layer.work is not None]
    cost = StageCost(
        forward_s=sum(m.forward_s for m in measured),
        backward_s=sum(m.backward_s for m in measured),
        step_s=sum(layer.step_s for layer in layers),
        output_bytes=measured[-1].output_bytes,
        saved_bytes=saved_bytes(measured),
        weight_bytes=sum(layer.weight_bytes for layer in layers),
        optimizer_bytes=sum(layer.optimizer_bytes for layer in layers),
        copy_s=sum(layer.copy_s for layer in work),
        predict_s=sum(layer.predict_s for layer in work),
        average_s=sum(layer.average_s for layer in work),
        output_is_saved=output_is_saved(measured),
        working_bytes=_working_bytes(measured),
        gradient_bytes=_gradient_bytes(layers),
        kept_gradient_bytes=sum(layer.kept_gradient_bytes for layer in layers),
        output_gradient_bytes=measured[-1].output_gradient_bytes,
    )
    return _split_first(cost) if is_first else _split(cost, measured)


def _with_unshards(cost: StageCost, sharded: Sequence[ShardedWeights]) -> StageCost:
    """Return the cost of a stage with Unshards; its gathered weights count as held all the time.

    PyTorch sums the gradients once, before the Step (REDUCE_GRAD), and holds them whole until then.
    """
    return replace(
        cost,
        unshard_s=sum(of.gather_s for of in sharded),
        step_s=cost.step_s + sum(of.sum_s for of in sharded),
        weight_bytes=cost.weight_bytes + sum(of.gathered_bytes for of in sharded),
        gradient_bytes=cost.said("gradient_bytes") + sum(of.summed_bytes for of in sharded),
    )


def _with_exchanges(
    cost: StageCost,
    measured: Sequence[LayerMeasurement],
    sharded: Sequence[ShardedWeights],
    beside: Beside,
    *,
    is_first: bool,
    is_last: bool,
) -> StageCost:
    """Return a stage whose passes gather the weights of its layers, and that sums their gradients.

    If there is only one stage, it sums after each backward, and the weights of one layer and of the next one are whole
    at the same time. With several stages, PyTorch sums once, before the Step. Until then it holds whole gradients and,
    after a backward, whole weights (torch/distributed/pipelining/stage.py, set_requires_gradient_sync).

    Args:
        cost: The stage with whole weights.
        measured: The measurement of each layer.
        sharded: The exchanges of each layer.
        beside: The exchanges that run beside computation.
        is_first: Whether the stage is the first, which has no I.
        is_last: Whether the stage is the last, whose last layer stays whole between its passes.
    """
    is_alone = is_first and is_last
    back, gathers_s = measured[::-1], [of.gather_s for of in sharded]
    again_s = gathers_s[::-1]
    if is_last:
        again_s[0] = 0.0
    sums_s = [of.sum_s for of in reversed(sharded)] if is_alone else []
    assert cost.backward_s is not None, "an estimate has it"
    forward_s = cost.forward_s + beside.shown_s([m.forward_s for m in measured], gathers_s)
    backward_s = cost.backward_s + beside.shown_s([m.backward_s for m in back], again_s, sums_s)
    cost = replace(cost, forward_s=forward_s, backward_s=backward_s)
    if is_alone:
        pairs = [2 * of.gathered_bytes for of in sharded]
        cost = replace(cost, working_bytes=_working_bytes(measured, pairs))
    else:
        step_s = cost.step_s + sum(of.sum_s for of in sharded)
        gradient_bytes = cost.said("gradient_bytes") + sum(of.gathered_bytes + of.summed_bytes for of in sharded)
        cost = replace(cost, step_s=step_s, gradient_bytes=gradient_bytes)
    if is_first:
        return replace(cost, backward_weight_s=backward_s)
    if cost.backward_input_s is None or cost.backward_weight_s is None:
        return cost
    splits = [m.split for m in back if m.split is not None]
    input_s = beside.shown_s([split.backward_input_s for split in splits], again_s)
    weight_s = beside.shown_s([split.backward_weight_s for split in splits], (), sums_s)
    return replace(
        cost, backward_input_s=cost.backward_input_s + input_s, backward_weight_s=cost.backward_weight_s + weight_s
    )


def _gradient_bytes(layers: Sequence[LayerCost]) -> int | None:
    """Return the bytes of the gradients of a stage, or None if no layer has a number."""
    if all(layer.gradient_bytes is None for layer in layers):
        return None
    return sum(layer.said_gradient_bytes for layer in layers)


def _split_first(cost: StageCost) -> StageCost:
    """Add I and W of the first stage: it needs no gradient of its input, so its W is the whole backward.

    The gradient of its output is kept until W, with all saved bytes.
    """
    for_weight = cost.saved_bytes + cost.said("output_gradient_bytes")
    return replace(cost, backward_input_s=0.0, backward_weight_s=cost.backward_s, saved_for_weight_bytes=for_weight)


def _split(cost: StageCost, measured: Sequence[LayerMeasurement]) -> StageCost:
    """Add I and W to the cost of a stage other than the first, if all its layers have a split."""
    splits = [m.split for m in measured if m.split is not None]
    if len(splits) < len(measured):
        return cost
    return replace(
        cost,
        backward_input_s=sum(split.backward_input_s for split in splits),
        backward_weight_s=sum(split.backward_weight_s for split in splits),
        saved_for_weight_bytes=saved_for_weight_bytes(measured),
    )


def _between(lower: StageCost, upper: StageCost, share: float) -> StageCost:
    """Return the point `share` of the way from `lower` to `upper`; fields independent of the size are unchanged."""
    ends = {name: (getattr(lower, name), getattr(upper, name)) for name in OF_SAMPLES}
    points: dict[str, Any] = {name: None if None in pair else _line(*pair, share) for name, pair in ends.items()}
    for name in (name for name in OF_SAMPLES if name.endswith("_bytes") and points[name] is not None):
        points[name] = round(points[name])
    return replace(lower, **points)


def _line(a: float, b: float, share: float) -> float:
    """Return the number `share` of the way from `a` to `b`."""
    return a + share * (b - a)


def _best_throughput(layers: Sequence[LayerCost]) -> float:
    """Return the highest throughput of a stage at any measured size."""
    each_size = zip(*(layer.measurements for layer in layers), strict=True)
    return max(
        _throughput(measured[0].microbatch_size, sum(m.forward_s + m.backward_s for m in measured))
        for measured in each_size
    )


def _throughput(microbatch_size: int, seconds: float) -> float:
    """Return samples per second of forward and backward; 0 if they take no time."""
    return microbatch_size / seconds if seconds else 0.0
