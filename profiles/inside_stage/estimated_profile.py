"""The estimated profile of a transformer: seconds and bytes of its layers on one GPU of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipesched.profiles import FLOAT32_BYTES, OPTIMIZER_MOMENTS, OptimizerName
from pipesched.profiles.clusters import Gpu
from pipesched.profiles.costs import (
    LayerCost,
    LayerMeasurement,
    LayerSharding,
    LayerSplit,
    LayerWork,
    Profile,
    ShardedWeights,
    estimated_provenance,
    with_fit_factor,
)
from pipesched.profiles.inside_stage.collective_time import collective_s
from pipesched.profiles.inside_stage.fabric import Fabric, GpuGroup, group_of
from pipesched.profiles.inside_stage.kernel_time import kernel_s
from pipesched.profiles.inside_stage.layer_operators import LayerMaker, OperatorPass, TransformerLayer
from pipesched.profiles.inside_stage.model_shape import ModelShape
from pipesched.profiles.inside_stage.operators import Collective, CollectiveKind, GroupName, Operator
from pipesched.profiles.inside_stage.sharding import require_divided

HOST_OPERATOR_S = 60e-6
"""Time of the host for one kernel of ours, in PyTorch without graphs: several launches, autograd and Python."""
HOST_EXPERT_S = 500e-6
"""Time of the host for a permutation of tokens or a product per expert: sorting, counts that the host reads, loops."""


@dataclass(frozen=True, slots=True)
class StageClock:
    """Seconds of the work of one GPU of a stage.

    Attributes:
        gpu: The GPU.
        fabric: Its links.
        sharding: The split of the layers.
    """

    gpu: Gpu
    fabric: Fabric
    sharding: LayerSharding

    def pass_s(self, layer_pass: OperatorPass, around: Sequence[Collective] = ()) -> float:
        """Return the seconds of a pass: the device's time for kernels and collectives, or the host's time if longer.

        Args:
            layer_pass: The pass.
            around: Exchanges that run beside other passes, but that the host launches in this pass.
        """
        sharding = self.sharding
        kernels_s = attention_s = shown_s = hidden_s = context_s = 0.0
        for operator in layer_pass.operators:
            seconds = kernel_s(operator, self.gpu, sharding.precision, sharding.attention)
            kernels_s += seconds
            attention_s += seconds if operator.kind in ("attention", "attention_backward") else 0.0
        for collective in layer_pass.collectives:
            seconds = self.collective_s(collective)
            if collective.group == "context":
                context_s += seconds
            elif collective.is_hidden:
                hidden_s += seconds
            else:
                shown_s += seconds
        shown_s += max(0.0, context_s - attention_s)  # keys and values arrive beside attention alone
        device_s = max(kernels_s, hidden_s) + shown_s
        if sharding.has_graphs:
            return device_s
        host_s = sum(
            HOST_EXPERT_S if operator.kind in ("permute", "group_matmul") else HOST_OPERATOR_S
            for operator in layer_pass.operators
        )
        collectives = (*layer_pass.collectives, *around)
        host_s += sharding.host_collective_s * sum(self.group(collective.group).size > 1 for collective in collectives)
        return max(device_s, host_s)

    def collective_s(self, collective: Collective, *, is_chained: bool = False) -> float:
        """Return the seconds of an exchange, alone or as one of many in a row; 0 in a group of one GPU."""
        return collective_s(collective, self.group(collective.group), self.fabric.intra, is_chained=is_chained)

    def group(self, name: GroupName) -> GpuGroup:
        """Return a group of the stage."""
        return group_of(name, self.sharding, self.fabric)

    def moved_s(self, num_bytes: float) -> float:
        """Return the seconds of a kernel that reads or writes `num_bytes`; 0 without bytes."""
        moved = Operator("moved", "memory", 0, round(num_bytes))
        return kernel_s(moved, self.gpu, self.sharding.precision) if num_bytes else 0.0


def estimated_profile(
    shape: ModelShape,
    sharding: LayerSharding,
    gpu: Gpu,
    fabric: Fabric,
    microbatch_sizes: Sequence[int],
    optimizer: OptimizerName = "adamw",
) -> Profile:
    """Return the estimated profile of a transformer on one GPU of a stage.

    benchmarks/results/published.md compares estimates with published runs. The layers are the embedding, the blocks,
    blocks of multi-token prediction and the head; prediction and head belong to one stage. A tied head has a second
    copy of its weights if it is on another stage than the embedding. The first and the last stage then sum the
    gradients of both copies. They also do so if blocks of multi-token prediction have a copy of the embedding
    (Megatron-LM).

    Args:
        shape: The model.
        sharding: The split of its layers over the GPUs of a stage.
        gpu: The GPU; its data sheet has a peak for the precision.
        fabric: The links of the GPU.
        microbatch_sizes: Samples, rising.
        optimizer: The optimizer; its moments and its copy of the weights are float32.

    Raises:
        ProfileError: The split does not divide the model, or the data sheet lacks a number that is needed.
    """
    require_divided(shape, sharding)
    clock, sizes = StageClock(gpu, fabric, sharding), list(microbatch_sizes)

    def cost(name: str, layers: Sequence[TransformerLayer]) -> LayerCost:
        return _layer_cost(name, layers, sizes, clock, optimizer)

    makers = [LayerMaker(shape, size, sharding) for size in sizes]
    dense = [maker.block() for maker in makers]
    sparse = [maker.block(has_experts=True) for maker in makers] if shape.experts else []
    kinds = [cost("", layers) for layers in (dense, sparse) if layers]
    blocks = [replace(kinds[shape.has_experts(index)], name=f"block {index}") for index in range(shape.layers)]
    placeholder_bytes = max(block.matrix_gradient_bytes for block in (dense[0], *sparse[:1]))
    layers = (
        cost("embedding", [maker.embedding() for maker in makers]),
        *blocks,
        *(
            cost(
                f"prediction {index}",
                [maker.prediction(shape.has_experts(shape.layers + index)) for maker in makers],
            )
            for index in range(shape.predicted_tokens)
        ),
        cost("head", [_head(maker, placeholder_bytes) for maker in makers]),
    )
    unfitted = replace(sharding, fit_factor=1.0)
    provenance = estimated_provenance(f"{gpu.name}, estimated", optimizer, unfitted, gpu.family)
    work = shape.sample_work(gpu.flops_per_s[sharding.precision])
    shared = -(-shape.vocab // sharding.tensor) * shape.hidden if shape.is_tied or shape.predicted_tokens else 0
    tied_bytes = _summed_bytes(sharding) * shared
    profile = Profile(shape.name, layers, provenance, sample_work=work, tied_bytes=tied_bytes, is_tied=shape.is_tied)
    return with_fit_factor(profile, sharding.fit_factor)


def _head(maker: LayerMaker, placeholder_bytes: int) -> TransformerLayer:
    """Return the head; its passes also hold the placeholders of the blocks' fused gradients from the last step."""
    head = maker.head()
    kept_bytes = placeholder_bytes if maker.sharding.has_fused_gradients else 0
    return replace(head, working_bytes=head.working_bytes + kept_bytes)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The state of some parameters on one GPU, and their step.

    Attributes:
        weight_bytes: Bytes of the weights, of their shard with ZeRO-3.
        kept_bytes: Bytes of gradients, float32 weights and moments.
        gradient_bytes: Bytes of the gradients alone.
        step_s: Seconds of the sum of gradients, of the step, and of the gather of weights.
    """

    weight_bytes: int
    kept_bytes: int
    gradient_bytes: int
    step_s: float


def training_state(
    parameters: int, group: GroupName, clock: StageClock, optimizer: OptimizerName, backward_s: float = 0.0
) -> TrainingState:
    """Return the training state of `parameters` whose copies are in `group`.

    Mixed precision keeps a float32 copy of the weights and float32 moments (arXiv:1910.02054, section 3.1). ZeRO
    splits them over the group.

    Args:
        parameters: Parameters on one GPU, before ZeRO splits them.
        group: The group with their copies.
        clock: Seconds of kernels and collectives.
        optimizer: The optimizer.
        backward_s: Seconds of backward beside which a hidden sum of gradients runs.
    """
    sharding = clock.sharding
    copies = clock.group(group).size
    element = FLOAT32_BYTES if sharding.precision == "float32" else 2
    optimizer_element = OPTIMIZER_MOMENTS[optimizer] * FLOAT32_BYTES + (FLOAT32_BYTES if element < FLOAT32_BYTES else 0)
    shard = -(-parameters // copies)
    weights = element * (shard if sharding.zero == 3 else parameters)
    gradients = sharding.gradient_bytes * (shard if sharding.zero >= 2 else parameters)
    states = optimizer_element * (shard if sharding.zero else parameters)
    updated = shard if sharding.zero else parameters
    # the norm reads the gradient, the step reads it again, reads and writes all states, and writes the weights
    summed = _summed_bytes(sharding)
    step_s = clock.moved_s(2 * summed * updated + 2 * optimizer_element * updated + element * updated)
    step_s += clock.moved_s(summed * (shard if sharding.zero >= 2 else parameters))  # zeroing
    if copies > 1:
        summed_bytes = summed * parameters
        kind: CollectiveKind = "reduce_scatter" if sharding.zero and not sharding.has_whole_sums else "all_reduce"
        summed_s = (
            clock.collective_s(Collective(kind, summed_bytes, group), is_chained=True) if sharding.zero < 3 else 0.0
        )
        step_s += max(0.0, summed_s - backward_s) if sharding.hides_gradients else summed_s
        if sharding.zero in (1, 2):
            gathered_s = clock.collective_s(Collective("all_gather", element * parameters, group), is_chained=True)
            step_s += 0.0 if sharding.hides_weights else gathered_s
    return TrainingState(weights, gradients + states, gradients, step_s)


def _summed_bytes(sharding: LayerSharding) -> int:
    """Return the bytes per gradient element that a sum sends; further bytes of a gradient are copies of it."""
    return min(FLOAT32_BYTES, sharding.gradient_bytes)


def _layer_cost(
    name: str,
    layers: Sequence[TransformerLayer],
    sizes: Sequence[int],
    clock: StageClock,
    optimizer: OptimizerName,
) -> LayerCost:
    """Return the cost of one layer, given at each of the sizes."""
    measurements = tuple(_measurement(size, layer, clock) for size, layer in zip(sizes, layers, strict=True))
    first, backward_s = layers[0], measurements[-1].backward_s
    dense = training_state(first.parameters, "data", clock, optimizer, backward_s)
    experts = training_state(first.expert_parameters, "expert_data", clock, optimizer)
    weights = dense.weight_bytes + experts.weight_bytes
    return LayerCost(
        name,
        weights,
        dense.kept_bytes + experts.kept_bytes,
        dense.step_s + experts.step_s,
        measurements,
        LayerWork(clock.moved_s(2 * weights), clock.moved_s(4 * weights), clock.moved_s(11 * weights)),
        gradient_bytes=0,
        kept_gradient_bytes=dense.gradient_bytes + experts.gradient_bytes,
        sharded=_sharded(first, clock) if first.gathers else None,
    )


def _sharded(layer: TransformerLayer, clock: StageClock) -> ShardedWeights:
    """Return the exchanges of the weights of a layer under ZeRO-3."""
    gather_s, sum_s = (sum(map(clock.collective_s, exchanges)) for exchanges in (layer.gathers, layer.sums))
    gathered_bytes, summed_bytes = (
        sum(collective.num_bytes for collective in exchanges) for exchanges in (layer.gathers, layer.sums)
    )
    return ShardedWeights(gather_s, sum_s, gathered_bytes, summed_bytes)


def _measurement(size: int, layer: TransformerLayer, clock: StageClock) -> LayerMeasurement:
    forward_s, input_s = (clock.pass_s(of, layer.gathers) for of in (layer.forward, layer.backward_input))
    weight_s = clock.pass_s(layer.backward_weight, layer.sums)
    is_first = not layer.backward_input.operators
    split = LayerSplit(input_s, weight_s, 0, layer.saved_bytes, input_saved=True, output_saved=False)
    return LayerMeasurement(
        microbatch_size=size,
        forward_s=forward_s,
        backward_s=input_s + weight_s,
        input_bytes=layer.input_bytes,
        output_bytes=layer.output_bytes,
        output_storage_bytes=layer.output_bytes,
        saved_bytes=layer.saved_bytes,
        input_saved=True,
        output_saved=False,
        output_is_input=False,
        split=None if is_first else split,
        working_bytes=layer.working_bytes,
    )
