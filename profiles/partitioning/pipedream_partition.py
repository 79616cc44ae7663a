"""PipeDream's partitioner: layers into stages, and devices to stages: arXiv:1806.03377, section 3.2.

Devices come in levels: ``levels[0]`` joins a number of devices, as in a server, ``levels[1]`` a number of such groups.
With T_l the forward and backward seconds of layer l, a_l its output and w_l its weights [bytes], the layers i..j as one
stage on m groups of level k, and the best pipeline of them, take per micro-batch

    T^k(i..j, m) = max( A^{k-1}(i..j, all of level k-1), 2 (m - 1) sum of w / B_k ) / m
    A^k(i..j, m) = min over s and m' of max( A^k(i..s, m - m'), 2 a_s / B_k, T^k(s+1..j, m') ),  or T^k(i..j, m)

with A^0 the plain sum of T_l. The authors' published optimizer adds the gradients' time to the work instead,
(A + 4 (m - 1) sum of w / (B m)) / m, and leaves the transfers between stages out: ``form="published"``.

Two extensions are ours. Devices may differ. They are assigned in their order, so a stage has neighbours. Each replica
gets every m-th micro-batch, so all replicas count as slow and as small as the least of them; A^0 is the sum of T_l
divided by the least speed. And a stage must fit. Under 1F1B-RR a stage on r devices, with R devices from this stage on,
has ceil(R / r) micro-batches in flight, each with a version of its weights; T^0 is infinite if that exceeds the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Device
from pipesched.profiles.partitioning.antichains import Prefixes
from pipesched.profiles.partitioning.replicated_stage import (
    ChainLayer,
    Level,
    ReplicatedStage,
    ReplicationForm,
    StageBytes,
)

_MAX_ENTRIES = 5 * 10**7
"""Largest number of entries of a table, 8 bytes each."""


def replicated_partition(
    layers: Sequence[ChainLayer],
    levels: Sequence[Level],
    *,
    form: ReplicationForm = "paper",
    straight: bool = False,
    devices: Sequence[Device] | None = None,
    stage_bytes: StageBytes | None = None,
    prefixes: Prefixes | None = None,
) -> tuple[ReplicatedStage, ...]:
    """Return the stages, and the devices of each, with the fastest slowest part.

    Exact. Among equals one stage beats several, then the last stage has the fewest groups, then it begins earliest.
    Takes layers^3 x groups^2 steps for each level but the last, and layers^2 x groups^2 for the last. If groups differ,
    or memory is limited, the levels below run once for each run of groups.

    Args:
        layers: The layers, in order.
        levels: The levels from the innermost; the product of their groups is the number of devices. All devices are
            used.
        form: Formula: of the paper, or of the published optimizer.
        straight: Whether no stage is replicated.
        devices: Speeds and memory of the devices, group by group (default: all of speed 1).
        stage_bytes: Memory of a stage; None to ignore the memory of the devices.
        prefixes: Prefixes of the layers' graph, whose numbers then replace layers in stages and `stage_bytes`; None for
            a chain.

    Raises:
        ProfileError: There are no layers or levels, numbers are invalid, no partition uses all devices, or no partition
            fits.
    """
    from pipesched.profiles.partitioning.pipedream_tables import LayerSums, pipelines

    num_devices = math.prod(level.num_groups for level in levels)
    end = len(layers) if prefixes is None else len(prefixes.masks) - 1
    _require_possible(layers, levels, num_devices, devices, end)
    places = [Device()] * num_devices if devices is None else devices
    free = pipelines(LayerSums(layers, form, straight, None, prefixes), levels, places)
    if not math.isfinite(free.best_s[0, end]):
        raise ProfileError(
            f"partition: got {len(layers)} layers for {num_devices} devices in a straight pipeline, expected at least "
            "one layer each; use fewer devices, or let stages be replicated"
        )
    best = tuple(free.stages(0, end))
    if stage_bytes is None or _fits(best, places, stage_bytes):
        return best
    tables = pipelines(LayerSums(layers, form, straight, stage_bytes, prefixes), levels, places)
    if math.isfinite(tables.best_s[0, end]):
        return tuple(tables.stages(0, end))
    least = pipelines(LayerSums(layers, "bytes", straight, stage_bytes, prefixes), levels, places).best_s[0, end]
    given = min(device.memory_bytes for device in places if device.memory_bytes is not None)
    raise ProfileError(
        f"partition: got devices with {given} bytes, the smallest of them, expected {least:.0f} on each for "
        f"{num_devices} devices of 1F1B-RR; use more memory or devices, a smaller micro-batch, or try `by=time`"
    )


def replicated_in_flight(stages: Sequence[ReplicatedStage]) -> tuple[int, ...]:
    """Return the largest number of unfinished micro-batches on each device of a stage under 1F1B-RR."""
    behind = [*accumulate(stage.replicas for stage in reversed(stages))]
    return tuple(math.ceil(all_on / stage.replicas) for all_on, stage in zip(reversed(behind), stages, strict=True))


def slowest_s(stages: Sequence[ReplicatedStage]) -> float:
    """Return the time per micro-batch of the slowest part of a plan, which the partitioner minimizes."""
    return max(max(stage.seconds, stage.transfer_s) for stage in stages)


def _fits(stages: Sequence[ReplicatedStage], devices: Sequence[Device], stage_bytes: StageBytes) -> bool:
    for stage, num_in_flight in zip(stages, replicated_in_flight(stages), strict=True):
        always, for_microbatch = stage_bytes(stage.first, stage.last)
        limits = [devices[device].memory_bytes for device in stage.devices]
        if any(limit is not None and always + num_in_flight * for_microbatch > limit for limit in limits):
            return False
    return True


def _require_possible(
    layers: Sequence[ChainLayer],
    levels: Sequence[Level],
    num_devices: int,
    devices: Sequence[Device] | None,
    num_cuts: int,
) -> None:
    if not layers or not levels:
        raise ProfileError(f"partition: got {len(layers)} layers and {len(levels)} levels, expected at least 1 of each")
    for index, layer in enumerate(layers):
        if not math.isfinite(layer.seconds) or min(layer.seconds, layer.output_bytes, layer.weight_bytes) < 0:
            raise ProfileError(
                f"partition: layer {index}: got {layer}, expected finite numbers of 0 or more; correct it"
            )
    for index, level in enumerate(levels):
        if level.num_groups < 1 or not level.bandwidth_bytes_per_s > 0:
            raise ProfileError(
                f"partition: level {index}: got {level.num_groups} groups at {level.bandwidth_bytes_per_s} bytes/s, "
                "expected at least 1, and more than 0 bytes/s; correct it"
            )
        if level.num_groups * (num_cuts + 1) ** 2 > _MAX_ENTRIES:
            raise ProfileError(
                f"partition: level {index}: got {level.num_groups} groups for {num_cuts} layers, expected groups x "
                f"layers^2 to be at most {_MAX_ENTRIES:.0e}; use fewer devices per level"
            )
    if devices is not None and len(devices) != num_devices:
        raise ProfileError(
            f"partition: got {len(devices)} devices, expected {num_devices}, the product of the levels; correct it"
        )
