"""Cut a profile into stages for the devices of a cluster: by time, by memory, or with replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from operator import itemgetter

import numpy as np

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Profile, StageCost
from pipesched.profiles.partitioning.antichains import Prefixes, arranged_order, prefixes_of
from pipesched.profiles.partitioning.minimax import balanced_partition, cheapest_partition, uniform_partition
from pipesched.profiles.partitioning.pipedream_partition import (
    ChainLayer,
    Level,
    ReplicationForm,
    replicated_in_flight,
    replicated_partition,
    slowest_s,
)
from pipesched.profiles.partitioning.rank_work import RankWork, balanced_over_ranks, busiest_first
from pipesched.schedules.builders import build
from pipesched.schedules.ops import computes, in_flight_change


def held_bytes(cost: StageCost, in_flight: int) -> int:
    """Return the bytes of weights, gradients, optimizer state, `in_flight` micro-batches and working memory of B.

    Further versions of the weights, which some schedules keep, are not included.
    """
    always, for_microbatch = flushed_bytes(cost)
    return always + cost.working_bytes + in_flight * for_microbatch


def flushed_bytes(cost: StageCost) -> tuple[int, int]:
    """Return the fixed bytes of a stage with one version of its weights, and its bytes per micro-batch in flight.

    Fixed: weights, gradients and optimizer state. Per micro-batch: activations. Both add up over the layers of a stage.
    """
    return cost.weight_bytes + cost.said("gradient_bytes") + cost.optimizer_bytes, cost.saved_bytes


def stashed_bytes(cost: StageCost) -> tuple[int, int]:
    """Return the fixed bytes of a stage under 1F1B-RR, as in PipeDream, and its bytes per micro-batch in flight.

    Fixed: optimizer state, and the larger of gradients and working memory of B. Per micro-batch in flight: activations
    and one version of the weights. This is a bound, because a version remains until its Step, after the activations.
    """
    always = cost.optimizer_bytes + max(cost.said("gradient_bytes"), cost.working_bytes)
    return always, cost.weight_bytes + cost.saved_bytes


def interleaved_bytes(costs: Sequence[StageCost], num_devices: int) -> list[int]:
    """Return the peak bytes of each device under interleaved 1F1B, with stage s on device s mod `num_devices`.

    Micro-batches in flight are counted op by op, with 4 micro-batches per device, which fill the pipeline.
    """
    schedule = build("interleaved", num_devices, 4 * num_devices, len(costs) // num_devices)
    device_bytes = []
    for device, row in enumerate(schedule.ops):
        saved = most = 0
        for part in (part for op in row for part in computes(op)):
            cost, change = costs[part.stage], in_flight_change(part)
            if change < 0:  # the peak is before a B frees saved bytes
                most = max(most, saved + cost.working_bytes)
            saved += cost.saved_bytes * change
        device_bytes.append(most + sum(flushed_bytes(cost)[0] for cost in costs[device::num_devices]))
    return device_bytes


@dataclass(frozen=True, slots=True)
class PartitionedStage:
    """One stage and its costs; times are per micro-batch of the whole pipeline unless noted otherwise.

    Attributes:
        first: The stage's first layer.
        last: The layer after the stage's last layer.
        devices: The devices that hold the stage.
        forward_s: Seconds of one forward on a device of speed 1.
        backward_s: Seconds of one backward on a device of speed 1.
        compute_s: Seconds of forward and backward at the speed of the devices, divided by the number of replicas.
        reduce_s: Seconds of averaging the gradients of the replicas.
        transfer_s: Seconds of the messages from and to the previous stage, the input and its gradient; 0 for the first
            stage.
        weight_bytes: Bytes of one version of the stage's weights.
        output_bytes: Bytes of the stage's output.
        memory_bytes: Bytes on the fullest device of the stage, for all stages on this device; see `held_bytes`.
    """

    first: int
    last: int
    devices: tuple[int, ...]
    forward_s: float
    backward_s: float
    compute_s: float
    reduce_s: float
    transfer_s: float
    weight_bytes: int
    output_bytes: int
    memory_bytes: int

    @property
    def replicas(self) -> int:
        """The number of devices that hold the stage."""
        return len(self.devices)


@dataclass(frozen=True, slots=True)
class PartitionedStages:
    """A partition: the stages of a model, and the least time per micro-batch.

    Attributes:
        stages: The stages, in order.
        slowest_s: Seconds per micro-batch of the busiest device, for all its stages; for `by_replicas`, of the slowest
            part by PipeDream's formula: work, averaging or transfers.
        order: All layers, stage by stage: rising except in a graph that is cut through its branches.
    """

    stages: tuple[PartitionedStage, ...]
    slowest_s: float
    order: tuple[int, ...]

    def layers_of(self, stage: PartitionedStage) -> tuple[int, ...]:
        """Return the numbers of a stage's layers, rising."""
        return tuple(sorted(self.order[stage.first : stage.last]))

    @property
    def partition(self) -> str:
        """The numbers of layers of the stages, as text for `parse_partition`: ``3,3,4``."""
        return ",".join(str(stage.last - stage.first) for stage in self.stages)

    @property
    def replicas(self) -> str:
        """The numbers of devices of the stages, as text for 1f1b_rr: ``3:1``."""
        return ":".join(str(stage.replicas) for stage in self.stages)


def by_time(
    profile: Profile, microbatch_size: int, cluster: Cluster, num_devices: int, num_chunks: int = 1
) -> PartitionedStages:
    """Return the stages that minimize the time of the slowest stage, within the memory and at the speed of the devices.

    Stage s is on device s mod `num_devices`. Memory is counted for 1F1B, where stage s of p has p - s micro-batches in
    flight. With several chunks per device, single layers are moved to reduce the work of the busiest device. Memory is
    then counted for interleaved 1F1B, and the result may not fit: see `over_memory`.

    Raises:
        ProfileError: There are more stages than layers, or no partition fits.
    """
    num_stages = num_devices * num_chunks
    devices = cluster.devices[:num_devices]
    speeds = [device.speed for device in devices] * num_chunks
    order = arranged_order(profile, num_stages, speeds if len(set(speeds)) > 1 else None)
    profile = _in_order(profile, order)
    cost_of = _costs(profile, microbatch_size)
    limited = num_chunks == 1 and any(device.memory_bytes is not None for device in devices)

    def fits(stage: int, first: int, last: int) -> bool:
        limit = devices[stage].memory_bytes
        return limit is None or held_bytes(cost_of(first, last), num_stages - stage) <= limit

    seconds = profile.seconds_of_layers(microbatch_size)
    try:
        bounds = balanced_partition(seconds, num_stages, speeds, fits if limited else None)
    except ProfileError as error:
        if not limited or num_stages > len(profile.layers):
            raise
        raise ProfileError(_does_not_fit(profile, microbatch_size, cluster, num_devices)) from error
    if num_chunks > 1:
        sums = [[0.0, *accumulate(layer_s / device.speed for layer_s in seconds)] for device in devices]
        stages = tuple(tuple((s, sums[d]) for s in range(d, num_stages, num_devices)) for d in range(num_devices))
        firsts = (bounds, uniform_partition(len(seconds), num_stages))
        work = RankWork(num_stages, stages)
        cuts = [balanced_over_ranks(work, tuple(last - first for first, last in cut)) for cut in firsts]
        _, best = min(zip(busiest_first(work, np.array(cuts)), cuts, strict=True), key=itemgetter(0))
        bounds = tuple(pairwise(accumulate(best, initial=0)))
    return _straight(cost_of, bounds, cluster, num_devices, order)


def by_memory(profile: Profile, microbatch_size: int, cluster: Cluster, num_devices: int) -> PartitionedStages:
    """Return the stages with the smallest peak memory under 1F1B: stage s of p has p - s micro-batches in flight.

    Raises:
        ProfileError: There are more stages than layers.
    """
    prefixes = prefixes_of(profile)
    cost_of = _costs(profile, microbatch_size) if prefixes is None else _bytes_by_prefix(profile, prefixes)

    def cost(stage: int, first: int, last: int) -> float:
        if prefixes is not None and not prefixes.is_stage(first, last):
            return math.inf
        return held_bytes(cost_of(first, last), num_devices - stage)

    order = tuple(range(len(profile.layers)))
    num_cuts = len(order) if prefixes is None else len(prefixes.masks) - 1
    bounds = cheapest_partition(cost, num_cuts if num_devices <= len(order) else len(order), num_devices)
    if prefixes is not None:
        order = prefixes.order([last for _, last in bounds])
        bounds = tuple((prefixes.masks[a].bit_count(), prefixes.masks[b].bit_count()) for a, b in bounds)
        cost_of = _costs(_in_order(profile, order), microbatch_size)
    return _straight(cost_of, bounds, cluster, num_devices, order)


def by_replicas(
    profile: Profile,
    microbatch_size: int,
    cluster: Cluster,
    num_devices: int,
    *,
    form: ReplicationForm = "paper",
    straight: bool = False,
) -> PartitionedStages:
    """Return PipeDream's stages and replicas, at the speed and within the memory of the devices.

    Devices are assigned in their order, node by node. Memory is counted for 1F1B-RR; see `stashed_bytes`.

    Raises:
        ProfileError: Nodes have different numbers of devices, no partition uses all devices, or no partition fits.
    """
    prefixes = prefixes_of(profile)
    cost_of = _costs(profile, microbatch_size)
    bytes_of = cost_of if prefixes is None else _bytes_by_prefix(profile, prefixes)
    chain = []
    for index, layer in enumerate(profile.layers):
        cost = cost_of(index, index + 1)
        cut_bytes = (cost.output_bytes + cost.said("output_gradient_bytes")) / 2
        chain.append(ChainLayer(cost.both_s, cut_bytes, layer.weight_bytes))
    order = sorted(range(num_devices), key=lambda device: cluster.devices[device].node)
    replicated = replicated_partition(
        chain,
        levels(cluster, num_devices),
        form=form,
        straight=straight,
        devices=[cluster.devices[device] for device in order],
        stage_bytes=lambda first, last: stashed_bytes(bytes_of(first, last)),
        prefixes=prefixes,
    )
    layers = tuple(range(len(profile.layers)))
    if prefixes is not None:
        layers = prefixes.order([stage.last for stage in replicated])
        cost_of = _costs(profile.in_order(layers), microbatch_size)
        sizes = [mask.bit_count() for mask in prefixes.masks]
        replicated = tuple(replace(stage, first=sizes[stage.first], last=sizes[stage.last]) for stage in replicated)
    stages = []
    for stage, num_in_flight in zip(replicated, replicated_in_flight(replicated), strict=True):
        always, for_microbatch = stashed_bytes(cost_of(stage.first, stage.last))
        stages.append(
            replace(
                _partitioned_stage(
                    cost_of(stage.first, stage.last), stage.first, stage.last, always + num_in_flight * for_microbatch
                ),
                devices=tuple(order[device] for device in stage.devices),
                compute_s=stage.compute_s,
                reduce_s=stage.reduce_s,
                transfer_s=stage.transfer_s,
            )
        )
    return PartitionedStages(tuple(stages), slowest_s(replicated), layers)


def over_memory(partitioned: PartitionedStages, cluster: Cluster) -> tuple[int, int, int] | None:
    """Return the first stage that does not fit its devices, the bytes it needs and the bytes of the device, or None."""
    limits = [math.inf if device.memory_bytes is None else device.memory_bytes for device in cluster.devices]
    for index, stage in enumerate(partitioned.stages):
        limit = min(limits[device] for device in stage.devices)
        if stage.memory_bytes > limit:
            return index, stage.memory_bytes, int(limit)
    return None


def levels(cluster: Cluster, num_devices: int) -> tuple[Level, ...]:
    """Return the first `num_devices` devices as PipeDream's levels: within a node, then between nodes.

    Links of single pairs are ignored.

    Raises:
        ProfileError: The nodes have different numbers of devices.
    """
    devices = cluster.devices[:num_devices]
    sizes = [sum(device.node == node for device in devices) for node in sorted({device.node for device in devices})]
    if len(set(sizes)) > 1:
        raise ProfileError(
            f"cluster: got nodes of {', '.join(map(str, sizes[:8]))} devices, expected nodes of one size for "
            "replicated stages; use whole nodes, or try `by=time`"
        )
    inter = cluster.intra if cluster.inter is None else cluster.inter
    both = [Level(sizes[0], cluster.intra.bandwidth_bytes_per_s), Level(len(sizes), inter.bandwidth_bytes_per_s)]
    return tuple(level for level in both if level.num_groups > 1) or (both[0],)


def _costs(profile: Profile, microbatch_size: int) -> Callable[[int, int], StageCost]:
    @cache
    def cost_of(first: int, last: int) -> StageCost:
        return profile.cost_of_layers(first, last, microbatch_size)

    return cost_of


def _in_order(profile: Profile, order: tuple[int, ...]) -> Profile:
    return profile if profile.graph is None else profile.in_order(order)


def _bytes_by_prefix(profile: Profile, prefixes: Prefixes) -> Callable[[int, int], StageCost]:
    """Return the bytes of a stage between two prefixes: the stage keeps its input and the outputs of its layers."""
    assert profile.graph is not None, "only a graph has prefixes"
    weights = prefixes.sums([layer.weight_bytes for layer in profile.layers])
    states = prefixes.sums([layer.optimizer_bytes for layer in profile.layers])
    gradients = prefixes.sums([layer.said_gradient_bytes for layer in profile.layers])
    outputs = prefixes.sums(profile.graph.output_bytes)

    def bytes_of(first: int, last: int) -> StageCost:
        return StageCost(
            0.0,
            weight_bytes=weights[last] - weights[first],
            optimizer_bytes=states[last] - states[first],
            gradient_bytes=gradients[last] - gradients[first],
            saved_bytes=prefixes.cut_bytes[first] + outputs[last] - outputs[first],
        )

    return bytes_of


def _straight(
    cost_of: Callable[[int, int], StageCost],
    bounds: Sequence[tuple[int, int]],
    cluster: Cluster,
    num_devices: int,
    order: tuple[int, ...],
) -> PartitionedStages:
    """Return stages with one device each, in turn."""
    costs = [cost_of(first, last) for first, last in bounds]
    if len(bounds) == num_devices:
        held = [held_bytes(cost, num_devices - stage) for stage, cost in enumerate(costs)]
    else:
        held = interleaved_bytes(costs, num_devices)
    stages: list[PartitionedStage] = []
    for index, (first, last) in enumerate(bounds):
        device = index % num_devices
        alone = _partitioned_stage(costs[index], first, last, held[device])
        transfer_s = 0.0
        if index > 0:
            before, cut = (index - 1) % num_devices, costs[index - 1]
            transfer_s = cluster.link(before, device).transfer_s(cut.output_bytes)
            transfer_s += cluster.link(device, before).transfer_s(cut.said("output_gradient_bytes"))
        speed = cluster.devices[device].speed
        stages.append(replace(alone, devices=(device,), compute_s=alone.compute_s / speed, transfer_s=transfer_s))
    busy_s = (sum(stage.compute_s for stage in stages[device::num_devices]) for device in range(num_devices))
    return PartitionedStages(tuple(stages), max(busy_s), order)


def _partitioned_stage(cost: StageCost, first: int, last: int, memory_bytes: int) -> PartitionedStage:
    """Return a stage that is alone on a device of speed 1."""
    return PartitionedStage(
        first,
        last,
        devices=(0,),
        forward_s=cost.forward_s,
        backward_s=cost.whole_backward_s or 0.0,
        compute_s=cost.both_s,
        reduce_s=0.0,
        transfer_s=0.0,
        weight_bytes=cost.weight_bytes,
        output_bytes=cost.output_bytes,
        memory_bytes=memory_bytes,
    )


def _does_not_fit(profile: Profile, microbatch_size: int, cluster: Cluster, num_devices: int) -> str:
    best = by_memory(profile, microbatch_size, cluster, num_devices)
    least = max(stage.memory_bytes for stage in best.stages)
    given = min(d.memory_bytes for d in cluster.devices[:num_devices] if d.memory_bytes is not None)
    smaller = ", or a smaller micro-batch" if microbatch_size > profile.microbatch_sizes[0] else ""
    return (
        f"partition of {profile.model}: got a smallest device with {given} bytes, expected {least} bytes on each for "
        f"{num_devices} stages of 1F1B; use more devices{smaller}"
    )
